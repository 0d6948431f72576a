"""The torch references of the attention kernels, with the same signatures. They specify the kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc_runtime.encodings.distance import BiasForm
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.window import Window


def bias_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    form: BiasForm,
    scale: float,
    out: Tensor,
    window: Window | None = None,
) -> None:
    """Causal attention with a distance bias: ``softmax(scale q.k + b(h, i - j)) v`` over keys j <= i.

    Query head h reads KV head ``h // (num_heads // num_kv_heads)``. Sums are float32.

    Args:
        query: ``[num_tokens, num_heads, head_dim]``; tokens after those of the last request are padding.
        key_cache, value_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``; the last stride is 1, the others
            are free.
        form: the bias, of ``num_heads`` heads.
        out: ``[num_tokens, num_heads, head_dim]``, written; rows of padding are left as they are.
        window: lets a kernel skip keys that the window's bound proves not to matter. This reference reads all keys.
    """
    group = query.shape[1] // key_cache.shape[1]
    for request in range(len(batch)):
        rows, keys, values, distance = _request(query, key_cache, value_cache, batch, request)
        bias = form.bias(distance.clamp(min=0).float())
        for head in range(query.shape[1]):
            scores = query[rows, head].float() @ keys[:, head // group].float().T * scale
            out[rows, head] = _attend(scores + bias[head], distance, values[:, head // group]).to(out.dtype)


def cope_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    cope: Cope,
    scale: float,
    out: Tensor,
    counts: Tensor | None = None,
) -> None:
    """Causal attention with contextual positions (Golovneva et al. 2024, arXiv:2405.18719, section 3).

    Scores are ``s_ij = scale q_i.k_j`` and gates ``g_ij = sigmoid(s_ij)``. The position of key j for query i is
    ``p_ij = sum of g_it over j <= t <= i``, at most ``npos - 1``. The logit is ``s_ij + z_i(p_ij)``, where z_i
    interpolates linearly between the entries of ``qe_scale q_i.pos_emb``. Positions are summed in float32, newest key
    first.

    Args: those of ``bias_attention``, and
        cope: the table of positions, and its scale.
        counts: int64 ``[2]``. Kernels add to it, for each tile of queries and KV head, the keys that they visited
            before all rows of the tile had reached the last position, and the keys after that. This reference adds
            nothing.
    """
    group = query.shape[1] // key_cache.shape[1]
    for request in range(len(batch)):
        rows, keys, values, distance = _request(query, key_cache, value_cache, batch, request)
        for head in range(query.shape[1]):
            q = query[rows, head].float()
            scores = q @ keys[:, head // group].float().T * scale
            gates = torch.sigmoid(scores).masked_fill(distance < 0, 0)
            positions = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=cope.pos_emb.shape[1] - 1)
            z = cope.qe_scale * q @ cope.pos_emb.float()
            below = positions.floor().long()
            above = positions.ceil().long()
            weight = positions - below
            logits = scores + z.gather(-1, below) * (1 - weight) + z.gather(-1, above) * weight
            out[rows, head] = _attend(logits, distance, values[:, head // group]).to(out.dtype)


def _request(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: PagedBatch, request: int
) -> tuple[slice, Tensor, Tensor, Tensor]:
    """The tensors of one request.

    Returns:
        The request's rows in the queries, its keys and values ``[num_keys, num_kv_heads, head_dim]`` each, and the
        distances ``[num_queries, num_keys]``, below 0 for keys after a query.
    """
    begin, end = (int(place) for place in batch.query_start_loc[request : request + 2])
    length, block_size = int(batch.seq_lens[request]), key_cache.shape[2]
    blocks = batch.block_table[request, : math.ceil(length / block_size)].long()
    keys, values = (cache[blocks].transpose(1, 2).flatten(0, 1)[:length] for cache in (key_cache, value_cache))
    positions = torch.arange(length, device=query.device)
    return slice(begin, end), keys, values, positions[length - (end - begin) :, None] - positions[None, :]


def _attend(logits: Tensor, distance: Tensor, values: Tensor) -> Tensor:
    return logits.masked_fill(distance < 0, -math.inf).softmax(-1) @ values.float()

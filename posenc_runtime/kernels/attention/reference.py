"""The torch twins of the attention kernels, with the same signatures. The reference is the specification."""

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
        query: ``[num_tokens, num_heads, head_dim]``; tokens past the last request's are padding.
        key_cache, value_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``, at any strides but the last, 1.
        form: of ``num_heads`` heads.
        out: ``[num_tokens, num_heads, head_dim]``, written; padding is left as it is.
        window: skip what it proves not to matter. This reference reads everything.
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

    With scores ``s_ij = scale q_i.k_j`` and gates ``g_ij = sigmoid(s_ij)``, key j stands ``p_ij = sum of g_it over
    j <= t <= i`` positions back, at most ``npos - 1``. Its logit is ``s_ij + z_i(p_ij)``, where z_i interpolates
    linearly between the entries of ``qe_scale q_i.pos_emb``. Positions are summed in float32, newest key first.

    Args: as ``bias_attention``'s, and
        cope: the table, and its convention.
        counts: int64 ``[2]``, added to: keys that a tile of queries and a KV head walked before all of their rows stood
            at the last position, and after. This reference does not walk, and counts nothing.
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
    """Its rows of the queries, its keys and values ``[num_keys, num_kv_heads, head_dim]``, and all distances."""
    begin, end = (int(place) for place in batch.query_start_loc[request : request + 2])
    length, block_size = int(batch.seq_lens[request]), key_cache.shape[2]
    blocks = batch.block_table[request, : math.ceil(length / block_size)].long()
    keys, values = (cache[blocks].transpose(1, 2).flatten(0, 1)[:length] for cache in (key_cache, value_cache))
    positions = torch.arange(length, device=query.device)
    return slice(begin, end), keys, values, positions[length - (end - begin) :, None] - positions[None, :]


def _attend(logits: Tensor, distance: Tensor, values: Tensor) -> Tensor:
    return logits.masked_fill(distance < 0, -math.inf).softmax(-1) @ values.float()

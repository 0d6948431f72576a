"""The torch reference of attention with positions at read time. It specifies the kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.read_time import PLAIN, LayerLogits, ReadTime, check


def read_time_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    read_time: ReadTime,
    scale: float,
    out: Tensor,
    logits: LayerLogits = PLAIN,
    *,
    only_far: bool = False,
) -> None:
    """Causal attention in which a query past the trained length reads far pages from other positions.

    The query at position i of a request is turned from i to ``read_time.pages.target(i, j0)`` for the page that begins
    at key j0; all its logits are multiplied by ``read_time.pages.factor(i)``. Query head h reads KV head
    ``h // (num_heads // num_kv_heads)``. Sums are float32.

    Args:
        query: bfloat16, float16 or float32 ``[num_tokens, num_heads, head_dim]``, rotated at its own position, as the
            model hands it to any attention; tokens after those of the last request are padding.
        key_cache, value_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]`` in any strides, of query's data
            type, float8_e4m3fn or float8_e5m2. Keys are rotated at their own positions. A page must be a multiple of
            ``block_size``.
        batch: the requests. A request's first cached key is at position 0.
        read_time: the pages, and the layer's rotation. It turns the first ``rotary_dim`` dimensions of a head.
        scale: multiplies products of queries and keys.
        out: ``[num_tokens, num_heads, head_dim]``, written; rows of padding are left as they are.
        logits: sinks, a soft cap, and the scales of an 8-bit cache.
        only_far: whether rows of queries below the trained length are left as they are, for stock attention.

    Raises:
        ValueError: see ``read_time.check``.
    """
    check(query, key_cache, value_cache, batch, read_time, out, logits)
    group, block_size = query.shape[1] // key_cache.shape[1], key_cache.shape[2]
    for request in range(len(batch)):
        begin, end = (int(place) for place in batch.query_start_loc[request : request + 2])
        length = int(batch.seq_lens[request])
        if only_far:
            begin = max(begin, end - max(0, length - read_time.pages.trained_length))
        if begin == end:
            continue
        blocks = batch.block_table[request, : math.ceil(length / block_size)].long()
        keys = _read(key_cache, blocks, length, logits.k_scale).repeat_interleave(group, 1)
        values = _read(value_cache, blocks, length, logits.v_scale).repeat_interleave(group, 1)
        positions = torch.arange(length - (end - begin), length, device=query.device)
        scores = _scores(query[begin:end].float(), keys, positions, read_time)
        factors = [read_time.pages.factor(position) for position in positions.tolist()]
        scores *= (scale * torch.tensor(factors, dtype=torch.float64, device=query.device)).float()[:, None, None]
        if logits.soft_cap:
            scores = logits.soft_cap * torch.tanh(scores / logits.soft_cap)
        later = torch.arange(length, device=query.device) > positions[:, None]
        scores = scores.masked_fill(later[:, None, :], -math.inf)
        if logits.sinks is not None:
            sink = logits.sinks.view(1, -1, 1).expand(end - begin, -1, 1)
            scores = torch.cat((scores, sink), -1)
        weights = scores.softmax(-1)[..., :length]
        out[begin:end] = torch.einsum("qhk,khd->qhd", weights, values).to(out.dtype)


def _read(cache: Tensor, blocks: Tensor, length: int, scale: Tensor | None) -> Tensor:
    """A request's keys or values, float32 ``[length, num_kv_heads, head_dim]``."""
    # As bytes, because torch does not index numbers of 8 bits on every device.
    whole = cache.view(torch.uint8) if cache.element_size() == 1 else cache
    read = whole[blocks].view(cache.dtype).float().transpose(1, 2).flatten(0, 1)[:length]
    return read if scale is None else read * scale.view(1, -1, 1)


def _scores(query: Tensor, keys: Tensor, positions: Tensor, read_time: ReadTime) -> Tensor:
    """Products of queries, turned for each page, with keys: ``[num_queries, num_heads, num_keys]``."""
    pages = read_time.pages
    near = torch.tensor([pages.first_near_key(position) for position in positions.tolist()], device=query.device)
    scores = query.new_empty(*query.shape[:2], len(keys))
    for first in range(0, len(keys), pages.page):
        of_page = slice(first, first + pages.page)
        turned = query
        if (near > first).any():
            far = turn(query, *read_time.turns(positions, first), read_time.is_neox_style)
            turned = torch.where((near > first)[:, None, None], far, query)
        scores[..., of_page] = torch.einsum("qhd,khd->qhk", turned, keys[of_page])
    return scores


def turn(query: Tensor, cos: Tensor, sin: Tensor, is_neox_style: bool) -> Tensor:
    """Queries ``[num_queries, num_heads, head_dim]``, turned by the angles of ``[num_queries, rotary_dim // 2]``."""
    pairs = cos.shape[1]
    rotated, rest = query[..., : 2 * pairs], query[..., 2 * pairs :]
    if is_neox_style:
        x, y = rotated[..., :pairs], rotated[..., pairs:]
    else:
        x, y = rotated[..., ::2], rotated[..., 1::2]
    cos, sin = cos[:, None, :], sin[:, None, :]
    x, y = x * cos - y * sin, y * cos + x * sin
    turned = torch.cat((x, y), -1) if is_neox_style else torch.stack((x, y), -1).flatten(-2)
    return torch.cat((turned, rest), -1)

"""Triton: attention with a distance bias for requests of one query. Several programs share the keys of a request."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels.attention import chunk_list, chunks
from posenc_runtime.kernels.attention.bias_forms import load_form
from posenc_runtime.kernels.attention.bias_tile import attend_with_bias
from posenc_runtime.kernels.attention.chunk_list import count_chunks, find_chunk
from posenc_runtime.kernels.attention.chunks import Partials, chunk_size, merge, store_partial
from posenc_runtime.kernels.attention.launch import in_base_2, stages, width
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.paged_tiles import load_queries
from posenc_runtime.kernels.attention.window_plan import Plan

PROGRAMS = 396  # programs that take chunks from the list, as many as an H100 runs at once; they change no result


@triton.jit(do_not_specialize=["num_requests", "num_kv_heads", "room", "scale"])
def _decode_kernel(  # type: ignore[no-untyped-def]
    p_query,
    p_keys,
    p_values,
    p_acc,
    p_sums,
    p_slope,
    p_shape,
    p_table,
    p_work,  # this and the next two are a plan's; None if every key is read
    p_num_items,
    p_first_keys,
    p_query_start_loc,
    p_seq_lens,
    p_block_table,
    num_requests,
    num_kv_heads,
    room,
    scale,  # in base 2
    stride_table,
    stride_query_token,
    stride_query_head,
    stride_cache_block,
    stride_cache_head,
    stride_cache_token,
    FORM: tl.constexpr,
    TABLE_LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    REQUESTS: tl.constexpr,
    STAGES: tl.constexpr,
    BM: tl.constexpr,  # at least GROUP
    BD: tl.constexpr,
):
    if p_work is not None:
        num_items = tl.load(p_num_items)
    else:
        num_chunks = count_chunks(p_query_start_loc, p_seq_lens, num_requests, REQUESTS, MAX_CHUNKS, MIN_CHUNK, TILE)
        num_items = num_chunks * num_kv_heads
    for index in range(tl.program_id(0), num_items, tl.num_programs(0)):
        if p_work is not None:
            item = tl.load(p_work + index)
            i_pair = item // MAX_CHUNKS
            i_chunk = item % MAX_CHUNKS
            i_request = i_pair // num_kv_heads
            i_kv_head = i_pair % num_kv_heads
            first_key = tl.load(p_first_keys + i_pair)
        else:
            i_request, i_chunk = find_chunk(
                index // num_kv_heads,
                p_query_start_loc,
                p_seq_lens,
                num_requests,
                REQUESTS,
                MAX_CHUNKS,
                MIN_CHUNK,
                TILE,
            )
            i_kv_head = index % num_kv_heads
            first_key = index * 0
        query = tl.load(p_query_start_loc + i_request)
        seq_len = tl.load(p_seq_lens + i_request)
        size = chunk_size(seq_len - first_key, MAX_CHUNKS, MIN_CHUNK, TILE)
        begin = first_key + i_chunk * size
        end = tl.minimum(begin + size, seq_len)
        if begin < end:
            o_row = tl.arange(0, BM)
            m_row = o_row < GROUP
            o_head = i_kv_head * GROUP + tl.minimum(o_row, GROUP - 1)
            b_slope, b_shape = load_form(p_slope, p_shape, o_head, FORM)
            b_query = load_queries(p_query, query, o_head, m_row, stride_query_token, stride_query_head, HEAD_DIM, BD)
            b_acc = tl.zeros([BM, BD], tl.float32)
            b_max = tl.full([BM], -float("inf"), tl.float32)
            b_sum = tl.zeros([BM], tl.float32)
            for first in tl.range(begin, end, TILE, num_stages=STAGES):
                b_acc, b_max, b_sum = attend_with_bias(
                    b_acc,
                    b_max,
                    b_sum,
                    b_query,
                    seq_len - 1 + o_row * 0,
                    o_head,
                    b_slope,
                    b_shape,
                    first,
                    end - 1,
                    p_keys + i_kv_head.to(tl.int64) * stride_cache_head,
                    p_values + i_kv_head.to(tl.int64) * stride_cache_head,
                    p_block_table + i_request.to(tl.int64) * stride_table,
                    p_table,
                    scale,
                    stride_cache_block,
                    stride_cache_token,
                    FORM,
                    TABLE_LENGTH,
                    HEAD_DIM,
                    BLOCK_SIZE,
                    TILE,
                    BD,
                    MASKED=True,
                )
            o_row += (i_request * num_kv_heads + i_kv_head) * GROUP
            store_partial(b_acc, b_max, b_sum, p_acc, p_sums, o_row, m_row, i_chunk, room, HEAD_DIM, BD)


def decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    scale: float,
    out: Tensor,
    found: Plan | None,
    arguments: dict[str, Any],
) -> None:
    """Write the outputs of all requests with one query.

    Args:
        found: what has to be read with a window; None without one.
        arguments: the kernel arguments for the form, the layout and the queries' strides.
    """
    num_kv_heads = key_cache.shape[1]
    partials = Partials.empty(query, batch, chunks.MAX_CHUNKS)
    of_plan: dict[str, Tensor | None] = {"p_work": None, "p_num_items": None, "p_first_keys": None}
    if found is not None:
        of_plan = {"p_work": found.work, "p_num_items": found.num_items, "p_first_keys": found.first_keys}
    most_items = len(batch) * num_kv_heads * partials.room
    _decode_kernel[(min(most_items, PROGRAMS),)](
        p_query=query,
        p_keys=key_cache,
        p_values=value_cache,
        num_requests=len(batch),
        num_kv_heads=num_kv_heads,
        REQUESTS=chunk_list.REQUESTS,
        **_constants(arguments["GROUP"], query.shape[2], query.dtype, scale),
        **arguments,
        **of_plan,
        **partials.arguments(),
        **chunks.sizes(chunks.MAX_CHUNKS),
    )
    merge(partials, of_plan["p_first_keys"], of_plan["p_num_items"], batch, num_kv_heads, out)


@functools.lru_cache(maxsize=16)
def _constants(group: int, head_dim: int, dtype: torch.dtype, scale: float) -> dict[str, Any]:
    """The kernel arguments that depend only on the heads; kept, because every layer asks for them in every step."""
    return {
        "scale": in_base_2(scale),
        "BM": max(16, triton.next_power_of_2(group)),
        "num_warps": 8 if width(head_dim, dtype) > 1 else 4,
        "STAGES": stages(head_dim, dtype),
    }

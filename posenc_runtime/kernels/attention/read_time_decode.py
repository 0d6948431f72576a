"""Triton: attention at read time for requests of one query. Several programs share the keys of a request."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels.attention import chunk_list, chunks
from posenc_runtime.kernels.attention.chunk_list import count_chunks, find_chunk
from posenc_runtime.kernels.attention.chunks import Partials, chunk_size, merge, store_partial
from posenc_runtime.kernels.attention.launch import stages, width
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.paged_tiles import load_rows
from posenc_runtime.kernels.attention.read_time_tile import (
    attend_to_tile,
    factors,
    first_near_keys,
    load_partners,
    phases_of_columns,
    turned,
)

PROGRAMS = 396  # programs that take chunks from the list, as many as an H100 runs at once; they change no result


@triton.jit(do_not_specialize=["num_requests", "num_kv_heads", "room", "scale", "soft_cap"])
def _decode_kernel(  # type: ignore[no-untyped-def]
    p_query,
    p_keys,
    p_values,
    p_acc,
    p_sums,
    p_phases,
    p_sinks,  # this and the next two may be None
    p_k_scales,
    p_v_scales,
    p_query_start_loc,
    p_seq_lens,
    p_block_table,
    num_requests,
    num_kv_heads,
    room,
    after,  # requests of at most this many tokens are left as they are; None for none
    scale,
    soft_cap,
    trained_length,
    page,
    edge,
    distance,
    leaks_from,
    bounded_from,
    tempered_from,
    log_tempered_from,
    stride_scales,
    stride_table,
    stride_query_token,
    stride_query_head,
    stride_cache_block,
    stride_cache_head,
    stride_cache_token,
    TEMPERATURE: tl.constexpr,
    CAPPED: tl.constexpr,
    HALF: tl.constexpr,
    IS_NEOX: tl.constexpr,
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
    num_chunks = count_chunks(p_query_start_loc, p_seq_lens, num_requests, REQUESTS, MAX_CHUNKS, MIN_CHUNK, TILE, after)
    for index in range(tl.program_id(0), num_chunks * num_kv_heads, tl.num_programs(0)):
        i_request, i_chunk = find_chunk(
            index // num_kv_heads,
            p_query_start_loc,
            p_seq_lens,
            num_requests,
            REQUESTS,
            MAX_CHUNKS,
            MIN_CHUNK,
            TILE,
            after,
        )
        i_kv_head = index % num_kv_heads
        query = tl.load(p_query_start_loc + i_request)
        seq_len = tl.load(p_seq_lens + i_request)
        begin = i_chunk * chunk_size(seq_len, MAX_CHUNKS, MIN_CHUNK, TILE)
        end = tl.minimum(begin + chunk_size(seq_len, MAX_CHUNKS, MIN_CHUNK, TILE), seq_len)
        position = seq_len - 1
        near = first_near_keys(position, trained_length, page, edge)
        o_row = tl.arange(0, BM)
        m_row = o_row < GROUP
        o_head = i_kv_head * GROUP + tl.minimum(o_row, GROUP - 1)
        p_row = p_query + query.to(tl.int64) * stride_query_token + o_head.to(tl.int64) * stride_query_head
        b_query = load_rows(p_row, m_row, HEAD_DIM, BD)
        b_partners = load_partners(p_row, m_row, HALF, IS_NEOX, BD)
        factor = scale * factors(position, trained_length, tempered_from, log_tempered_from, TEMPERATURE)
        if p_k_scales is not None:
            factor *= tl.load(p_k_scales + i_kv_head * stride_scales)
        b_factor = tl.zeros([BM], tl.float32) + factor
        b_acc = tl.zeros([BM, BD], tl.float32)
        b_max = tl.full([BM], -float("inf"), tl.float32)
        b_sum = tl.zeros([BM], tl.float32)
        if p_sinks is not None and i_chunk == 0:  # a logit without a value, once for all chunks
            b_max = tl.load(p_sinks + o_head) * 1.4426950408889634
            b_sum += 1.0
        for first_of_page in range(begin // page * page, end, page):
            back = position - first_of_page
            leaks = back < bounded_from
            tokens = tl.where(first_of_page >= near, 0, tl.where(leaks, leaks_from, distance) - back)
            b_phases = phases_of_columns(p_phases + tl.where(leaks, HALF, 0), HALF, IS_NEOX, BD)
            b_turns = (tokens.to(tl.int64) * b_phases)[None, :]
            b_turned = turned(b_query, b_partners, b_turns).to(b_query.dtype)
            begin_keys, end_keys = tl.maximum(begin, first_of_page), tl.minimum(end, first_of_page + page)
            for first in tl.range(begin_keys, end_keys, TILE, num_stages=STAGES):
                b_acc, b_max, b_sum = attend_to_tile(
                    b_acc,
                    b_max,
                    b_sum,
                    b_turned,
                    position + o_row * 0,
                    b_factor,
                    first,
                    end - 1,
                    p_keys + i_kv_head.to(tl.int64) * stride_cache_head,
                    p_values + i_kv_head.to(tl.int64) * stride_cache_head,
                    p_block_table + i_request.to(tl.int64) * stride_table,
                    soft_cap,
                    stride_cache_block,
                    stride_cache_token,
                    CAPPED,
                    HEAD_DIM,
                    BLOCK_SIZE,
                    TILE,
                    BD,
                    MASKED=True,
                )
        if p_v_scales is not None:
            b_acc *= tl.load(p_v_scales + i_kv_head * stride_scales)
        o_row += (i_request * num_kv_heads + i_kv_head) * GROUP
        store_partial(b_acc, b_max, b_sum, p_acc, p_sums, o_row, m_row, i_chunk, room, HEAD_DIM, BD)


def decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    out: Tensor,
    arguments: dict[str, Any],
    after: int | None = None,
) -> None:
    """Write the outputs of all requests with one query.

    Args:
        arguments: the kernel arguments for the pages, the rotation, the logits, the layout and the queries' strides.
        after: requests of at most this many tokens are left as they are; None leaves none out.
    """
    num_kv_heads = key_cache.shape[1]
    partials = Partials.empty(query, batch, chunks.MAX_CHUNKS)
    most_items = len(batch) * num_kv_heads * partials.room
    _decode_kernel[(min(most_items, PROGRAMS),)](
        p_query=query,
        p_keys=key_cache,
        p_values=value_cache,
        num_requests=len(batch),
        num_kv_heads=num_kv_heads,
        after=after,
        REQUESTS=chunk_list.REQUESTS,
        BM=max(16, triton.next_power_of_2(arguments["GROUP"])),
        STAGES=stages(query.shape[2], query.dtype),
        num_warps=8 if width(query.shape[2], query.dtype) > 1 else 4,
        **arguments,
        **partials.arguments(),
        **chunks.sizes(chunks.MAX_CHUNKS),
    )
    merge(partials, None, None, batch, num_kv_heads, out, after)

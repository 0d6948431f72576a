"""Triton: CoPE for requests of several queries. A program takes a tile of the queries. Decision 37.

A program visits keys from the newest to the oldest, because the position of a key is the sum of newer keys' gates. Once
all rows of a tile have reached the last position, all older keys have that position, too. For these keys the program
computes plain attention.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.cope_in_place import interpolated, last_logits, store_pairs, sums_by_product
from posenc_runtime.kernels.attention.cope_tile import count_keys, gate, is_saturated, position, positions
from posenc_runtime.kernels.attention.launch import in_base_2, width
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.paged_tiles import (
    attend,
    blocks_of_keys,
    dot,
    load_queries,
    load_rows,
    offsets_of_keys,
    request_of_tile,
    rows_of_tile,
    store_rows,
)

ROWS = 64  # rows of a tile, which are queries times heads of a group; half as many for the widest heads
GATED_TILE = 32  # keys of a tile with positions; few, so that the registers of two programs fit a multiprocessor
GATED_TILES = 4  # after this many tiles, a program checks whether all older keys are at the last position
TILE = 64  # keys of a tile of plain attention, fewer if heads are wide; a multiple of GATED_TILE
# The position logits that a launch stores, about: 128 MiB, 8,192 tokens by 32 heads at 64 positions. All launches of a
# batch are equally large and may store half as many again, so that a few surplus programs need no launch of their own.
POSITION_LOGITS = 2**24
PROGRAMS = 264  # the fewest programs of a launch, if there is work for them: two for each multiprocessor of an H100
_LOWEST = tl.constexpr(-1e30)  # below every logit; a row that has read no key yet may start from it, not from -inf


@triton.jit(do_not_specialize=["first_program", "num_requests", "num_kv_heads", "num_tiles", "scale", "qe_scale"])
def _prefill_kernel(  # type: ignore[no-untyped-def]
    p_query,
    p_keys,
    p_values,
    p_out,
    p_pos_emb,
    p_pairs,  # int64 [programs, NPOS, BM], see cope_in_place
    p_counts,  # None to count nothing
    p_query_start_loc,
    p_seq_lens,
    p_block_table,
    first_program,  # number of this launch's first program, among those of all launches
    num_requests,
    num_kv_heads,
    num_tiles,
    scale,  # scale and qe_scale are in base 2
    qe_scale,
    stride_table,
    stride_query_token,
    stride_query_head,
    stride_cache_block,
    stride_cache_head,
    stride_cache_token,
    stride_out_token,
    stride_out_head,
    NPOS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BM: tl.constexpr,  # rows
    BQ: tl.constexpr,  # queries, at most BM // GROUP
    BG: tl.constexpr,  # keys of a gated tile
    SPAN: tl.constexpr,  # keys between two checks for the last position, a multiple of BG and BN
    BN: tl.constexpr,  # keys of a plain tile
    BD: tl.constexpr,
):
    i_program = first_program + tl.program_id(0)
    # The newest queries of a request read the most keys, so their programs start first.
    i_tile = num_tiles - 1 - i_program // num_kv_heads
    i_kv_head = i_program % num_kv_heads
    i_request, first_query = request_of_tile(i_tile, p_query_start_loc, num_requests, BQ)
    query = tl.load(p_query_start_loc + i_request)
    num_queries = tl.load(p_query_start_loc + i_request + 1) - query
    if (num_queries > 1) & (first_query < num_queries):  # decode kernels take lone queries
        o_query, o_head, m_row = rows_of_tile(i_kv_head, first_query, num_queries, BM, BQ, GROUP)
        past = tl.load(p_seq_lens + i_request) - num_queries
        b_position = past + o_query
        last_position = past + tl.minimum(first_query + BQ, num_queries) - 1
        o_token = (query + o_query).to(tl.int64)
        b_query = load_queries(p_query, o_token, o_head, m_row, stride_query_token, stride_query_head, HEAD_DIM, BD)
        p_pair = p_pairs + tl.program_id(0).to(tl.int64) * (NPOS * BM)
        store_pairs(p_pair, b_query, p_pos_emb, qe_scale, NPOS, HEAD_DIM, BD)
        tl.debug_barrier()  # a thread looks up logits that other threads have stored
        p_table_row = p_block_table + i_request.to(tl.int64) * stride_table
        p_head_keys = p_keys + i_kv_head.to(tl.int64) * stride_cache_head
        p_head_values = p_values + i_kv_head.to(tl.int64) * stride_cache_head

        b_acc = tl.zeros([BM, BD], tl.float32)
        b_max = tl.full([BM], _LOWEST, tl.float32)
        b_sum = tl.zeros([BM], tl.float32)
        b_newer = tl.where(m_row, 0, position(NPOS))  # rows that do not count are at the last position from the start
        end = (last_position // BG + 1) * BG  # keys from here on have been visited
        begin = (past + first_query + 1) // SPAN * SPAN  # every row may read all older keys
        b_acc, b_max, b_sum, b_newer = _gated_tiles(
            True,
            end,
            begin,
            b_acc,
            b_max,
            b_sum,
            b_newer,
            b_query,
            b_position,
            last_position,
            p_pair,
            p_table_row,
            p_head_keys,
            p_head_values,
            scale,
            stride_cache_block,
            stride_cache_token,
            NPOS,
            HEAD_DIM,
            BLOCK_SIZE,
            BG,
            BD,
        )
        end = begin
        while (end > 0) & (not is_saturated(b_newer, NPOS)):
            b_acc, b_max, b_sum, b_newer = _gated_tiles(
                False,
                end,
                end - SPAN,
                b_acc,
                b_max,
                b_sum,
                b_newer,
                b_query,
                b_position,
                last_position,
                p_pair,
                p_table_row,
                p_head_keys,
                p_head_values,
                scale,
                stride_cache_block,
                stride_cache_token,
                NPOS,
                HEAD_DIM,
                BLOCK_SIZE,
                BG,
                BD,
            )
            end -= SPAN

        if p_counts is not None:
            count_keys(p_counts, last_position + 1, end)
        b_last_logit = last_logits(p_pair, NPOS, BM)
        for first in range(0, end, BN):
            o_key = first + tl.arange(0, BN)
            m_key = o_key >= 0
            b_block = tl.load(p_table_row + blocks_of_keys(o_key, BLOCK_SIZE))
            o_row = offsets_of_keys(b_block, o_key, stride_cache_block, stride_cache_token, BLOCK_SIZE)
            b_keys = load_rows(p_head_keys + o_row, m_key, HEAD_DIM, BD)
            b_scores = dot(b_query, tl.trans(b_keys)) * scale + b_last_logit[:, None]  # [BM, BN]
            b_values = load_rows(p_head_values + o_row, m_key, HEAD_DIM, BD)
            b_acc, b_max, b_sum = attend(b_scores, b_values, b_acc, b_max, b_sum)
        p_row = p_out + o_token * stride_out_token + o_head.to(tl.int64) * stride_out_head
        store_rows(p_row, b_acc / b_sum[:, None], m_row, HEAD_DIM, BD)


@triton.jit
def _gated_tiles(  # type: ignore[no-untyped-def]
    MASKED: tl.constexpr,  # whether some rows may not read some of the keys
    end,
    begin,
    b_acc,
    b_max,
    b_sum,
    b_newer,
    b_query,
    b_position,
    last_position,
    p_pair,
    p_table_row,
    p_head_keys,
    p_head_values,
    scale,
    stride_cache_block,
    stride_cache_token,
    NPOS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BG: tl.constexpr,
    BD: tl.constexpr,
):
    """Add keys ``begin`` to ``end - 1`` to a running softmax, the newest tile first, each with its position's logit."""
    for i_back in tl.range(1, (end - begin) // BG + 1, num_stages=2):
        o_key = end - i_back * BG + tl.arange(0, BG)
        m_key = (o_key <= last_position) | (not MASKED)
        b_block = tl.load(p_table_row + blocks_of_keys(o_key, BLOCK_SIZE), mask=m_key, other=0)
        o_row = offsets_of_keys(b_block, o_key, stride_cache_block, stride_cache_token, BLOCK_SIZE)
        b_keys = load_rows(p_head_keys + o_row, m_key, HEAD_DIM, BD)
        b_scores = dot(b_query, tl.trans(b_keys)) * scale  # [BM, BG]
        if MASKED:
            b_scores = tl.where(o_key[None, :] <= b_position[:, None], b_scores, -float("inf"))
        b_past, b_tile = sums_by_product(gate(b_scores))
        b_row, b_past = positions(b_past, b_newer, NPOS)
        b_scores += interpolated(p_pair, b_row, b_past)
        b_newer += b_tile
        b_values = load_rows(p_head_values + o_row, m_key, HEAD_DIM, BD)
        b_acc, b_max, b_sum = attend(b_scores, b_values, b_acc, b_max, b_sum)
    return b_acc, b_max, b_sum, b_newer


def prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    cope: Cope,
    scale: float,
    out: Tensor,
    counts: Tensor | None,
    arguments: dict[str, Any],
) -> None:
    """Write the outputs of all requests with more than one query."""
    num_kv_heads, npos = key_cache.shape[1], cope.pos_emb.shape[1]
    rows = ROWS // 2 if width(query.shape[2], query.dtype) > 2 else ROWS
    queries = rows // (query.shape[1] // num_kv_heads)
    num_tiles = query.shape[0] // queries + len(batch)
    num_programs = num_tiles * num_kv_heads
    num_launches = max(1, round(num_programs / max(PROGRAMS, POSITION_LOGITS // (rows * npos))))
    most = triton.cdiv(num_programs, num_launches)
    pairs = torch.empty(most, npos, rows, dtype=torch.int64, device=query.device)
    for first_program in range(0, num_programs, most):
        _prefill_kernel[(min(most, num_programs - first_program),)](
            p_query=query,
            p_keys=key_cache,
            p_values=value_cache,
            p_out=out,
            p_pos_emb=cope.pos_emb,
            p_pairs=pairs,
            p_counts=counts,
            first_program=first_program,
            num_requests=len(batch),
            num_kv_heads=num_kv_heads,
            num_tiles=num_tiles,
            scale=in_base_2(scale),
            qe_scale=in_base_2(cope.qe_scale),
            stride_out_token=out.stride(0),
            stride_out_head=out.stride(1),
            NPOS=npos,
            BM=rows,
            BQ=queries,
            BG=GATED_TILE,
            SPAN=GATED_TILES * GATED_TILE,
            BN=TILE // width(query.shape[2], query.dtype),
            num_warps=8 if width(query.shape[2], query.dtype) > 1 else 4,
            **arguments,
        )

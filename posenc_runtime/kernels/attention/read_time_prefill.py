"""Triton: attention at read time for requests of several queries. A program takes a tile of the queries.

A query at i is turned by ``distance + j0 - i`` for the far page that begins at j0. A first launch turns the queries
past the trained length by ``distance - i`` and keeps them in float32: once for bounded pages, and with a leak once more
for pages that leak, by a part of each frequency. A program then turns its rows by j0 when it comes to a page: the
angles of one page are the same for all rows, so they are few. It turns some rows at a time and stores them, because
registers do not hold all of them in float32 beside the sums of values.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels.attention.launch import width
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.paged_tiles import load_rows, request_of_tile, rows_of_tile, store_rows
from posenc_runtime.kernels.attention.read_time_tile import (
    attend_to_tile,
    factors,
    first_near_keys,
    load_partners,
    phases_of_columns,
    turned,
)

ROWS = 128  # rows of a tile, which are queries times heads of a group; fewer if heads are wide
TILE = 64  # keys of a tile; fewer if heads are wide
TURN_ROWS = 16  # rows that a program of the first launch turns
PAGE_ROWS = 32  # rows that a program turns at a time for a page; a power of two that divides ROWS for all heads


@triton.jit(do_not_specialize=["num_requests", "distance", "leaks_from"])
def _turn_kernel(  # type: ignore[no-untyped-def]
    p_query,
    p_turned,  # float32 [num_tokens, num_heads, TURNS, HEAD_DIM], contiguous
    p_phases,
    p_query_start_loc,
    p_seq_lens,
    num_requests,
    distance,
    leaks_from,
    trained_length,
    stride_query_token,
    stride_query_head,
    TURNS: tl.constexpr,  # 1, or 2 with a leak
    HALF: tl.constexpr,
    IS_NEOX: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BM: tl.constexpr,  # rows
    BQ: tl.constexpr,  # queries, at most BM // GROUP
    BD: tl.constexpr,
):
    i_request, first_query = request_of_tile(tl.program_id(0), p_query_start_loc, num_requests, BQ)
    begin = tl.load(p_query_start_loc + i_request)
    num_queries = tl.load(p_query_start_loc + i_request + 1) - begin
    past = tl.load(p_seq_lens + i_request) - num_queries
    last_query = tl.minimum(first_query + BQ, num_queries) - 1
    if (num_queries == 1) | (first_query >= num_queries) | (past + last_query < trained_length):
        return
    o_query, o_head, m_row = rows_of_tile(tl.program_id(1), first_query, num_queries, BM, BQ, GROUP)
    b_position = past + o_query
    o_token = (begin + o_query).to(tl.int64)
    p_row = p_query + o_token * stride_query_token + o_head.to(tl.int64) * stride_query_head
    b_query = load_rows(p_row, m_row, HEAD_DIM, BD)
    b_partners = load_partners(p_row, m_row, HALF, IS_NEOX, BD)
    p_turned += (o_token * (tl.num_programs(1) * GROUP) + o_head) * (TURNS * HEAD_DIM)
    turn = tl.program_id(2)
    tokens = tl.where(turn == 1, leaks_from, distance) - b_position
    b_phases = phases_of_columns(p_phases + turn * HALF, HALF, IS_NEOX, BD)
    b_turned = turned(b_query, b_partners, tokens.to(tl.int64)[:, None] * b_phases[None, :])
    store_rows(p_turned + turn * HEAD_DIM, b_turned, m_row, HEAD_DIM, BD)


@triton.jit
def _turn_for_page(  # type: ignore[no-untyped-def]
    first_of_page,
    p_query,
    p_turned,
    p_rows,
    p_phases,
    begin,
    first_query,
    num_queries,
    past,
    i_kv_head,
    num_heads,
    trained_length,
    page,
    edge,
    bounded_from,
    stride_query_token,
    stride_query_head,
    TURNS: tl.constexpr,
    HALF: tl.constexpr,
    IS_NEOX: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BM: tl.constexpr,
    BQ: tl.constexpr,
    BR: tl.constexpr,  # rows at a time
    BD: tl.constexpr,
):
    """Store a tile's queries in ``p_rows``, as the page that begins at ``first_of_page`` needs them."""
    nearest = past + first_query - first_of_page  # tokens from the page's first key to the tile's first query
    furthest = nearest + tl.minimum(BQ, num_queries - first_query) - 1
    for turn in tl.static_range(TURNS):
        if (nearest < bounded_from) if turn else (furthest >= bounded_from):
            b_phases = phases_of_columns(p_phases + turn * HALF, HALF, IS_NEOX, BD)
            b_turns = (b_phases * first_of_page)[None, :]
            for first_row in range(0, BM, BR):
                o_row = first_row + tl.arange(0, BR)
                o_query = first_query + o_row // GROUP
                m_row = (o_row < BQ * GROUP) & (o_query < num_queries)
                b_position = past + o_query
                if TURNS == 2:
                    m_row &= (b_position - first_of_page < bounded_from) == turn
                o_head = i_kv_head * GROUP + o_row % GROUP
                o_token = (begin + o_query).to(tl.int64)
                o_place = (o_token * num_heads + o_head) * HEAD_DIM
                p_far = p_turned + o_place * TURNS + turn * HEAD_DIM
                is_near = first_of_page >= first_near_keys(b_position, trained_length, page, edge)
                b_far = load_rows(p_far, m_row & ~is_near, HEAD_DIM, BD)
                b_partners = load_partners(p_far, m_row & ~is_near, HALF, IS_NEOX, BD)
                p_own = p_query + o_token * stride_query_token + o_head.to(tl.int64) * stride_query_head
                b_query = load_rows(p_own, m_row, HEAD_DIM, BD)
                b_far = turned(b_far, b_partners, b_turns).to(b_query.dtype)
                store_rows(p_rows + o_place, tl.where(is_near[:, None], b_query, b_far), m_row, HEAD_DIM, BD)


@triton.jit(do_not_specialize=["num_requests", "scale", "soft_cap"])
def _prefill_kernel(  # type: ignore[no-untyped-def]
    p_query,
    p_turned,
    p_rows,  # [num_tokens, num_heads, HEAD_DIM] of query's data type, contiguous, for the rows of a page
    p_keys,
    p_values,
    p_out,
    p_phases,
    p_sinks,  # this and the next two may be None
    p_k_scales,
    p_v_scales,
    p_query_start_loc,
    p_seq_lens,
    p_block_table,
    num_requests,
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
    stride_out_token,
    stride_out_head,
    TEMPERATURE: tl.constexpr,
    CAPPED: tl.constexpr,
    TURNS: tl.constexpr,
    HALF: tl.constexpr,
    IS_NEOX: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FAR_MASKED: tl.constexpr,  # whether a page that is far from one row may hold keys after another row
    ONLY_FAR: tl.constexpr,  # whether rows below the trained length are left as they are
    BM: tl.constexpr,  # rows
    BQ: tl.constexpr,  # queries, at most BM // GROUP
    BR: tl.constexpr,  # rows that are turned at a time
    BN: tl.constexpr,  # keys
    BD: tl.constexpr,
):
    # The newest queries of a request read the most keys, so their programs start first.
    i_tile = tl.num_programs(0) - 1 - tl.program_id(0)
    i_request, first_query = request_of_tile(i_tile, p_query_start_loc, num_requests, BQ)
    begin = tl.load(p_query_start_loc + i_request)
    num_queries = tl.load(p_query_start_loc + i_request + 1) - begin
    if (num_queries == 1) | (first_query >= num_queries):  # decode kernels take lone queries
        return
    i_kv_head = tl.program_id(1)
    o_query, o_head, m_row = rows_of_tile(i_kv_head, first_query, num_queries, BM, BQ, GROUP)
    past = tl.load(p_seq_lens + i_request) - num_queries
    b_position = past + o_query
    first_position = past + first_query
    last_position = past + tl.minimum(first_query + BQ, num_queries) - 1
    if ONLY_FAR and last_position < trained_length:
        return
    o_token = (begin + o_query).to(tl.int64)
    p_row = p_query + o_token * stride_query_token + o_head.to(tl.int64) * stride_query_head
    num_heads = tl.num_programs(1) * GROUP
    p_page_row = p_rows + (o_token * num_heads + o_head) * HEAD_DIM
    all_near = first_near_keys(last_position, trained_length, page, edge)
    b_factor = scale * factors(b_position, trained_length, tempered_from, log_tempered_from, TEMPERATURE)
    if p_k_scales is not None:
        b_factor *= tl.load(p_k_scales + i_kv_head * stride_scales)
    p_table_row = p_block_table + i_request.to(tl.int64) * stride_table
    p_keys += i_kv_head.to(tl.int64) * stride_cache_head
    p_values += i_kv_head.to(tl.int64) * stride_cache_head

    b_acc = tl.zeros([BM, BD], tl.float32)
    b_max = tl.full([BM], -float("inf"), tl.float32)
    b_sum = tl.zeros([BM], tl.float32)
    if p_sinks is not None:  # a logit without a value
        b_max = tl.load(p_sinks + o_head) * 1.4426950408889634
        b_sum += 1.0
    for first_of_page in range(0, all_near, page):
        tl.debug_barrier()  # all have loaded the rows of the page before
        _turn_for_page(
            first_of_page,
            p_query,
            p_turned,
            p_rows,
            p_phases,
            begin,
            first_query,
            num_queries,
            past,
            i_kv_head,
            num_heads,
            trained_length,
            page,
            edge,
            bounded_from,
            stride_query_token,
            stride_query_head,
            TURNS,
            HALF,
            IS_NEOX,
            GROUP,
            HEAD_DIM,
            BM,
            BQ,
            BR,
            BD,
        )
        tl.debug_barrier()  # all rows have been stored
        b_query = load_rows(p_page_row, m_row, HEAD_DIM, BD)
        for first in range(first_of_page, first_of_page + page, BN):
            b_acc, b_max, b_sum = attend_to_tile(
                b_acc,
                b_max,
                b_sum,
                b_query,
                b_position,
                b_factor,
                first,
                last_position,
                p_keys,
                p_values,
                p_table_row,
                soft_cap,
                stride_cache_block,
                stride_cache_token,
                CAPPED,
                HEAD_DIM,
                BLOCK_SIZE,
                BN,
                BD,
                MASKED=FAR_MASKED,
            )
    # Every row may read every near key up to the tile's first query, so only later tiles of keys are masked. In the
    # first tile of all keys every row reads a key, so that no largest score stays at minus infinity.
    b_query = load_rows(p_row, m_row, HEAD_DIM, BD)
    first_masked = tl.maximum((first_position + 1) // BN * BN, all_near)
    for is_masked in tl.static_range(2):
        begin_keys, end_keys = (first_masked, last_position + 1) if is_masked else (all_near, first_masked)
        for first in range(begin_keys, end_keys, BN):
            b_acc, b_max, b_sum = attend_to_tile(
                b_acc,
                b_max,
                b_sum,
                b_query,
                b_position,
                b_factor,
                first,
                last_position,
                p_keys,
                p_values,
                p_table_row,
                soft_cap,
                stride_cache_block,
                stride_cache_token,
                CAPPED,
                HEAD_DIM,
                BLOCK_SIZE,
                BN,
                BD,
                MASKED=is_masked,
            )
    if p_v_scales is not None:
        b_acc *= tl.load(p_v_scales + i_kv_head * stride_scales)
    if ONLY_FAR:
        m_row &= b_position >= trained_length
    p_out_row = p_out + o_token * stride_out_token + o_head.to(tl.int64) * stride_out_head
    store_rows(p_out_row, b_acc / b_sum[:, None], m_row, HEAD_DIM, BD)


def prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    out: Tensor,
    arguments: dict[str, Any],
    *,
    only_far: bool = False,
) -> None:
    """Write the outputs of all requests with more than one query.

    Args:
        arguments: the kernel arguments for the pages, the rotation, the logits, the layout and the queries' strides.
        only_far: whether rows of queries below the trained length are left as they are.
    """
    group, num_kv_heads = arguments["GROUP"], key_cache.shape[1]
    turns = arguments["p_phases"].shape[0]
    far = torch.empty(*query.shape[:2], turns, query.shape[2], dtype=torch.float32, device=query.device)
    of_turn = (
        *("p_phases", "p_query_start_loc", "p_seq_lens", "distance", "leaks_from", "trained_length"),
        *("stride_query_token", "stride_query_head", "HALF", "IS_NEOX", "GROUP", "HEAD_DIM", "BD"),
    )
    rows = max(TURN_ROWS, triton.next_power_of_2(group))
    _turn_kernel[(query.shape[0] // (rows // group) + len(batch), num_kv_heads, turns)](
        p_query=query,
        p_turned=far,
        num_requests=len(batch),
        TURNS=turns,
        BM=rows,
        BQ=rows // group,
        **{name: arguments[name] for name in of_turn},
    )
    rows, keys = ROWS // width(query.shape[2], query.dtype), TILE // width(query.shape[2], query.dtype)
    queries = rows // group
    _prefill_kernel[(query.shape[0] // queries + len(batch), num_kv_heads)](
        p_query=query,
        p_turned=far,
        p_rows=torch.empty(query.shape, dtype=query.dtype, device=query.device),
        p_keys=key_cache,
        p_values=value_cache,
        p_out=out,
        num_requests=len(batch),
        stride_out_token=out.stride(0),
        stride_out_head=out.stride(1),
        TURNS=turns,
        FAR_MASKED=arguments["edge"] < queries,
        ONLY_FAR=only_far,
        BM=rows,
        BQ=queries,
        BR=min(PAGE_ROWS, rows),
        BN=keys,
        num_warps=8,
        **arguments,
    )

"""Triton: attention with a distance bias for requests of several queries. A program takes a tile of the queries."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels.attention.bias_forms import load_form
from posenc_runtime.kernels.attention.bias_tile import attend_with_bias
from posenc_runtime.kernels.attention.launch import in_base_2, width
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.paged_tiles import (
    blocks_of_keys,
    load_queries,
    load_rows,
    offsets_of_keys,
    request_of_tile,
    rows_of_tile,
    store_rows,
)
from posenc_runtime.kernels.attention.window import Window
from posenc_runtime.kernels.attention.window_plan import (
    Plan,
    blocks_of_window,
    count_blocks,
    first_keys,
    window_arguments,
)

ROWS = 128  # rows of a tile, which are queries times heads of a group; fewer if heads are wide
TILE = 64  # keys of a tile; fewer if heads are wide


@triton.jit(do_not_specialize=["num_requests", "scale", "scale_in_base_2", "log_tolerance"])
def _prefill_kernel(  # type: ignore[no-untyped-def]
    p_query,
    p_keys,
    p_values,
    p_out,
    p_slope,
    p_shape,
    p_table,
    p_largest_norms,  # this and p_counts are None if every key is read
    p_counts,
    log_tolerance,
    p_query_start_loc,
    p_seq_lens,
    p_block_table,
    num_requests,
    scale,
    scale_in_base_2,
    stride_table,
    stride_query_token,
    stride_query_head,
    stride_cache_block,
    stride_cache_head,
    stride_cache_token,
    stride_out_token,
    stride_out_head,
    FORM: tl.constexpr,
    TABLE_LENGTH: tl.constexpr,
    ROUNDING: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BM: tl.constexpr,  # rows
    BQ: tl.constexpr,  # queries, at most BM // GROUP
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
    o_token = (begin + o_query).to(tl.int64)
    b_slope, b_shape = load_form(p_slope, p_shape, o_head, FORM)
    b_query = load_queries(p_query, o_token, o_head, m_row, stride_query_token, stride_query_head, HEAD_DIM, BD)
    p_table_row = p_block_table + i_request.to(tl.int64) * stride_table
    p_keys += i_kv_head.to(tl.int64) * stride_cache_head
    p_values += i_kv_head.to(tl.int64) * stride_cache_head

    first_key = first_position * 0
    if p_counts is not None:
        b_block = tl.load(p_table_row + blocks_of_keys(b_position, BLOCK_SIZE))
        o_own = offsets_of_keys(b_block, b_position, stride_cache_block, stride_cache_token, BLOCK_SIZE)
        b_own = load_rows(p_keys + o_own, m_row, HEAD_DIM, BD)
        largest_norm = tl.load(p_largest_norms + i_request * tl.num_programs(1) + i_kv_head)
        b_first = first_keys(
            b_query, b_own, b_position, largest_norm, b_slope, b_shape, scale, log_tolerance, ROUNDING, FORM
        )
        first_key = tl.min(tl.where(m_row, b_first, first_position), 0) // BN * BN
        read, skipped = blocks_of_window(first_key, last_position, BLOCK_SIZE)
        count_blocks(p_counts, read, skipped)

    b_acc = tl.zeros([BM, BD], tl.float32)
    b_max = tl.full([BM], -float("inf"), tl.float32)
    b_sum = tl.zeros([BM], tl.float32)
    # Every row may read every key up to the tile's first query, so only later tiles of keys are masked. In the first
    # tile of keys every row reads a key, so that no largest score stays at minus infinity.
    first_masked = (first_position + 1) // BN * BN
    for is_masked in tl.static_range(2):
        begin_keys, end_keys = (first_masked, last_position + 1) if is_masked else (first_key, first_masked)
        for first in range(begin_keys, end_keys, BN):
            b_acc, b_max, b_sum = attend_with_bias(
                b_acc,
                b_max,
                b_sum,
                b_query,
                b_position,
                o_head,
                b_slope,
                b_shape,
                first,
                last_position,
                p_keys,
                p_values,
                p_table_row,
                p_table,
                scale_in_base_2,
                stride_cache_block,
                stride_cache_token,
                FORM,
                TABLE_LENGTH,
                HEAD_DIM,
                BLOCK_SIZE,
                BN,
                BD,
                MASKED=is_masked,
            )
    p_row = p_out + o_token * stride_out_token + o_head.to(tl.int64) * stride_out_head
    store_rows(p_row, b_acc / b_sum[:, None], m_row, HEAD_DIM, BD)


def prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    scale: float,
    out: Tensor,
    window: Window | None,
    found: Plan | None,
    arguments: dict[str, Any],
) -> None:
    """Write the outputs of all requests with more than one query.

    Args:
        window, found: the window and its plan, or None for both.
        arguments: the kernel arguments for the form, the layout and the queries' strides.
    """
    num_kv_heads = key_cache.shape[1]
    of_window: dict[str, Any] = {"p_counts": None, "log_tolerance": 0.0, "ROUNDING": 0.0, "p_largest_norms": None}
    if window is not None and found is not None:
        of_window = window_arguments(window) | {"p_largest_norms": found.largest_norms}
    rows, keys = ROWS // width(query.shape[2], query.dtype), TILE // width(query.shape[2], query.dtype)
    queries = rows // arguments["GROUP"]
    _prefill_kernel[(query.shape[0] // queries + len(batch), num_kv_heads)](
        p_query=query,
        p_keys=key_cache,
        p_values=value_cache,
        p_out=out,
        num_requests=len(batch),
        scale=scale,
        scale_in_base_2=in_base_2(scale),
        stride_out_token=out.stride(0),
        stride_out_head=out.stride(1),
        BM=rows,
        BQ=queries,
        BN=keys,
        num_warps=8,
        **arguments,
        **of_window,
    )

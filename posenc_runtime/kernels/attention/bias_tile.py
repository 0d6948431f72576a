"""Triton: adds one tile of keys and values to the running softmax of rows with a distance bias."""

from __future__ import annotations

import triton
import triton.language as tl

from posenc_runtime.kernels.attention.bias_forms import biased
from posenc_runtime.kernels.attention.paged_tiles import attend, blocks_of_keys, dot, load_rows, offsets_of_keys


@triton.jit
def attend_with_bias(  # type: ignore[no-untyped-def]
    b_acc,
    b_max,
    b_sum,
    b_query,
    b_position,
    o_head,
    b_slope,
    b_shape,
    first_key,
    last_key,
    p_keys,
    p_values,
    p_table_row,
    p_table,
    scale,
    stride_cache_block,
    stride_cache_token,
    FORM: tl.constexpr,
    TABLE_LENGTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add one tile of keys and values to the running softmax of rows whose scores get a distance bias.

    Args:
        b_acc, b_max, b_sum: the running softmax, see ``paged_tiles.attend``, which returns the new one.
        b_query: ``[BM, BD]``.
        b_position, o_head, b_slope, b_shape: of each row ``[BM]``.
        first_key: the first key of the tile of BN keys.
        last_key: if MASKED, keys after this one are not read; at least ``first_key``.
        p_keys, p_values: address of the KV head's first element in each cache.
        p_table_row: address of the request's row in the block table.
        p_table: the table of a Table form.
        scale: in base 2.
        MASKED: whether the tile may hold keys after a row's position or after ``last_key``.
    """
    o_key = first_key + tl.arange(0, BN)
    m_key = o_key >= first_key
    if MASKED:
        m_key = o_key <= last_key
    b_block = tl.load(p_table_row + blocks_of_keys(o_key, BLOCK_SIZE), mask=m_key, other=0)
    o_row = offsets_of_keys(b_block, o_key, stride_cache_block, stride_cache_token, BLOCK_SIZE)
    b_keys = load_rows(p_keys + o_row, m_key, HEAD_DIM, BD)
    b_scores = dot(b_query, tl.trans(b_keys)) * scale  # [BM, BN]
    b_distance = b_position[:, None] - o_key[None, :]
    b_scores = biased(b_scores, b_distance, b_slope, b_shape, p_table, o_head, FORM, TABLE_LENGTH)
    if MASKED:
        b_scores = tl.where(b_distance >= 0, b_scores, -float("inf"))
    b_values = load_rows(p_values + o_row, m_key, HEAD_DIM, BD)
    return attend(b_scores, b_values, b_acc, b_max, b_sum)

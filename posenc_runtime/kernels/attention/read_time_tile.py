"""Triton: turns queries for far pages, and adds a tile of keys and values to their running softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from posenc_runtime.kernels.attention.paged_tiles import attend, blocks_of_keys, dot, load_rows, offsets_of_keys
from posenc_runtime.kernels.rotary.turns import cos_sin


@triton.jit
def first_near_keys(position, trained_length, page, edge):  # type: ignore[no-untyped-def]
    """See ``FarPages.first_near_key``; of one position, or of each row."""
    is_stock = (position < trained_length) | (position < edge)
    return tl.where(is_stock, 0, (position - edge) // page * page)


@triton.jit
def factors(position, trained_length, tempered_from, log_tempered_from, TEMPERATURE: tl.constexpr):  # type: ignore[no-untyped-def]
    """See ``FarPages.factor``; float32, of one position, or of each row."""
    length = (position + 1).to(tl.float32)
    factor = length * 0.0 + 1.0
    if TEMPERATURE == "logn":
        factor = tl.log(length) / log_tempered_from
    if TEMPERATURE == "yarn":
        root = 0.1 * (tl.log(length) - log_tempered_from) + 1.0
        factor = root * root
    is_hot = (position >= trained_length) & (position + 1 > tempered_from)
    return tl.where(is_hot, factor, 1.0)


@triton.jit
def phases_of_columns(p_phases, HALF: tl.constexpr, IS_NEOX: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    """The phase of each column's pair, int64 ``[BD]``; 0 in columns that are not rotated.

    Args:
        p_phases: address of the row of phases for one turn, see ``ReadTime.phases``.
    """
    o_dim = tl.arange(0, BD)
    o_pair = o_dim // 2
    if IS_NEOX:
        o_pair = tl.where(o_dim < HALF, o_dim, o_dim - HALF)
    return tl.load(p_phases + o_pair, mask=o_dim < 2 * HALF, other=0)


@triton.jit
def load_partners(p_row, m_row, HALF: tl.constexpr, IS_NEOX: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows, float32 ``[rows, BD]``, in which each element of a pair (x, y) is that of (-y, x).

    Args:
        p_row: address of each row's first element.
        m_row: which rows are loaded; the others are 0.
    """
    o_dim = tl.arange(0, BD)
    if IS_NEOX:
        is_x = o_dim < HALF
        o_partner = tl.where(is_x, o_dim + HALF, o_dim - HALF)
    else:
        is_x = o_dim % 2 == 0
        o_partner = tl.where(is_x, o_dim + 1, o_dim - 1)
    mask = m_row[:, None] & (o_dim < 2 * HALF)[None, :]
    b_partners = tl.load(p_row[:, None] + o_partner[None, :], mask=mask, other=0.0).to(tl.float32)
    return tl.where(is_x[None, :], -b_partners, b_partners)


@triton.jit
def turned(b_rows, b_partners, b_turns):  # type: ignore[no-untyped-def]
    """Rows turned by int64 angles in 2^-64 turns, float32 ``[rows, BD]``. An angle of 0 changes no bit.

    Args:
        b_turns: of each column ``[1, BD]``, or of each row and column.
    """
    b_cos, b_sin = cos_sin(b_turns)
    return b_rows.to(tl.float32) * b_cos + b_partners * b_sin


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    """By Cephes' tanhf: relative precision near zero, where ``1 - 2 / (e^2x + 1)`` would cancel."""
    x2 = x * x
    b_p = -5.70498872745e-3 * x2 + 2.06390887954e-2
    b_p = (b_p * x2 - 5.37397155531e-2) * x2 + 1.33314422036e-1
    b_small = x + x * x2 * (b_p * x2 - 3.33332819422e-1)
    b_large = 1.0 - 2.0 / (tl.exp2(2.8853900817779268 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, b_small, tl.where(x < 0, -b_large, b_large))


@triton.jit
def attend_to_tile(  # type: ignore[no-untyped-def]
    b_acc,
    b_max,
    b_sum,
    b_query,
    b_position,
    b_factor,
    first_key,
    last_key,
    p_keys,
    p_values,
    p_table_row,
    soft_cap,
    stride_cache_block,
    stride_cache_token,
    CAPPED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add one tile of keys and values to the running softmax of rows.

    Args:
        b_acc, b_max, b_sum: the running softmax, see ``paged_tiles.attend``, which returns the new one.
        b_query: ``[BM, BD]``, turned for the tile's page.
        b_position: of each row ``[BM]``.
        b_factor: what products become base-2 logits by, ``[BM]``; or base-e ones, if they are CAPPED.
        first_key: the first key of the tile of BN keys.
        last_key: if MASKED, keys after this one are not read.
        p_keys, p_values: address of the KV head's first element in each cache.
        p_table_row: address of the request's row in the block table.
        MASKED: whether the tile may hold keys after a row's position or after ``last_key``.
    """
    o_key = first_key + tl.arange(0, BN)
    m_key = o_key >= first_key
    if MASKED:
        m_key = o_key <= last_key
    b_block = tl.load(p_table_row + blocks_of_keys(o_key, BLOCK_SIZE), mask=m_key, other=0)
    o_row = offsets_of_keys(b_block, o_key, stride_cache_block, stride_cache_token, BLOCK_SIZE)
    b_keys = load_rows(p_keys + o_row, m_key, HEAD_DIM, BD).to(b_query.dtype)
    b_scores = dot(b_query, tl.trans(b_keys)) * b_factor[:, None]  # [BM, BN]
    if CAPPED:
        b_scores = (soft_cap * 1.4426950408889634) * _tanh(b_scores / soft_cap)
    if MASKED:
        b_scores = tl.where(b_position[:, None] >= o_key[None, :], b_scores, -float("inf"))
    b_values = load_rows(p_values + o_row, m_key, HEAD_DIM, BD).to(b_query.dtype)
    return attend(b_scores, b_values, b_acc, b_max, b_sum)

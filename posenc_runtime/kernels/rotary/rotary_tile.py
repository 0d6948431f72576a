"""Triton: load rows of heads, rotate or only copy them, and store them at another place."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_pairs(p_row, m_row, HALF: tl.constexpr, IS_NEOX: tl.constexpr, BH: tl.constexpr, BP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the first ``HALF`` pairs of each row: their first elements and their second elements, each ``[BH, BP]``.

    Args:
        p_row: address of each row's first element, ``[BH]``.
        m_row: which rows exist, ``[BH]``.
    """
    if IS_NEOX:
        o_pair = tl.arange(0, BP)
        m_pair = m_row[:, None] & (o_pair < HALF)[None, :]
        b_x = tl.load(p_row[:, None] + o_pair[None, :], mask=m_pair)
        b_y = tl.load(p_row[:, None] + (o_pair + HALF)[None, :], mask=m_pair)
    else:
        # Neighbours are loaded and stored together, because to access every second element makes accesses narrow.
        b_x, b_y = tl.split(tl.reshape(load_elements(p_row, m_row, 0, 2 * HALF, 2 * BP), (BH, BP, 2)))
    return b_x, b_y


@triton.jit
def store_turned(  # type: ignore[no-untyped-def]
    b_x,
    b_y,
    p_row,
    m_row,
    b_cos,
    b_sin,
    per_scale,
    HALF: tl.constexpr,
    IS_NEOX: tl.constexpr,
    BH: tl.constexpr,
    BP: tl.constexpr,
):
    """Rotate the pairs of ``load_pairs``, and store them.

    Args:
        b_cos, b_sin: cosine and sine of each pair's angle, float32 ``[BP]``.
        per_scale: see ``store``.
    """
    b_x, b_y = b_x.to(tl.float32), b_y.to(tl.float32)
    b_turned_x = b_x * b_cos[None, :] - b_y * b_sin[None, :]
    b_turned_y = b_y * b_cos[None, :] + b_x * b_sin[None, :]
    if IS_NEOX:
        o_pair = tl.arange(0, BP)
        m_pair = m_row[:, None] & (o_pair < HALF)[None, :]
        store(p_row[:, None] + o_pair[None, :], b_turned_x, m_pair, per_scale)
        store(p_row[:, None] + (o_pair + HALF)[None, :], b_turned_y, m_pair, per_scale)
    else:
        b_turned = tl.reshape(tl.join(b_turned_x, b_turned_y), (BH, 2 * BP))
        store_elements(b_turned, p_row, m_row, per_scale, 0, 2 * HALF, 2 * BP)


@triton.jit
def load_elements(p_row, m_row, BEGIN: tl.constexpr, END: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load elements ``BEGIN`` to ``END - 1`` of each row, at most ``BD`` of them; ``p_row`` has the rows' addresses."""
    o_dim = BEGIN + tl.arange(0, BD)
    return tl.load(p_row[:, None] + o_dim[None, :], mask=m_row[:, None] & (o_dim < END)[None, :])


@triton.jit
def store_elements(b_rows, p_row, m_row, per_scale, BEGIN: tl.constexpr, END: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    o_dim = BEGIN + tl.arange(0, BD)
    store(p_row[:, None] + o_dim[None, :], b_rows, m_row[:, None] & (o_dim < END)[None, :], per_scale)


@triton.jit
def copy_elements(p_source, p_target, m_row, per_scale, BEGIN: tl.constexpr, END: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    store_elements(load_elements(p_source, m_row, BEGIN, END, BD), p_target, m_row, per_scale, BEGIN, END, BD)


@triton.jit
def store(p_target, b_rows, mask, per_scale):  # type: ignore[no-untyped-def]
    """Store in the target's data type.

    Args:
        per_scale: 1 divided by the scale of a float8 target, whose largest number is 448; None for other targets.
    """
    if per_scale is not None:
        b_rows = tl.clamp(b_rows.to(tl.float32) * per_scale, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(p_target, b_rows.to(p_target.dtype.element_ty), mask=mask)

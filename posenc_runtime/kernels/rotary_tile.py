"""Triton: rows of heads that are rotated, or only copied, on their way from one place to another."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotate_rows(  # type: ignore[no-untyped-def]
    p_source,
    p_target,
    m_row,
    b_cos,
    b_sin,
    per_scale,
    HALF: tl.constexpr,
    IS_NEOX: tl.constexpr,
    BH: tl.constexpr,
    BP: tl.constexpr,
):
    """Rotate the first ``2 * HALF`` elements of each row.

    Args:
        p_source, p_target: where rows begin, ``[BH]``. They may be the same.
        m_row: which rows there are, ``[BH]``.
        b_cos, b_sin: float32 ``[BP]``, of each pair.
        per_scale: see ``store``.
    """
    o_pair = tl.arange(0, BP)
    if IS_NEOX:
        m_pair = m_row[:, None] & (o_pair < HALF)[None, :]
        b_x = tl.load(p_source[:, None] + o_pair[None, :], mask=m_pair).to(tl.float32)
        b_y = tl.load(p_source[:, None] + (o_pair + HALF)[None, :], mask=m_pair).to(tl.float32)
        store(p_target[:, None] + o_pair[None, :], b_x * b_cos[None, :] - b_y * b_sin[None, :], m_pair, per_scale)
        store(
            p_target[:, None] + (o_pair + HALF)[None, :],
            b_y * b_cos[None, :] + b_x * b_sin[None, :],
            m_pair,
            per_scale,
        )
    else:
        # Neighbours are loaded and stored together, for every second element makes every access narrow.
        o_dim = tl.arange(0, 2 * BP)
        m_dim = m_row[:, None] & (o_dim < 2 * HALF)[None, :]
        b_rows = tl.load(p_source[:, None] + o_dim[None, :], mask=m_dim).to(tl.float32)
        b_x, b_y = tl.split(tl.reshape(b_rows, (BH, BP, 2)))
        b_turned = tl.join(b_x * b_cos[None, :] - b_y * b_sin[None, :], b_y * b_cos[None, :] + b_x * b_sin[None, :])
        store(p_target[:, None] + o_dim[None, :], tl.reshape(b_turned, (BH, 2 * BP)), m_dim, per_scale)


@triton.jit
def copy_rows(p_source, p_target, m_row, per_scale, BEGIN: tl.constexpr, END: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Elements ``BEGIN`` to ``END``, at most ``BD`` of them, of each row that begins at the addresses given."""
    o_dim = BEGIN + tl.arange(0, BD)
    m_dim = m_row[:, None] & (o_dim < END)[None, :]
    b_rows = tl.load(p_source[:, None] + o_dim[None, :], mask=m_dim)
    store(p_target[:, None] + o_dim[None, :], b_rows, m_dim, per_scale)


@triton.jit
def store(p_target, b_rows, mask, per_scale):  # type: ignore[no-untyped-def]
    """Store in the target's data type.

    Args:
        per_scale: one by the scale of a float8 target, whose numbers end at 448; None where nothing is scaled.
    """
    if per_scale is not None:
        b_rows = tl.clamp(b_rows.to(tl.float32) * per_scale, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(p_target, b_rows.to(p_target.dtype.element_ty), mask=mask)

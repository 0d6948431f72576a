"""Triton: contextual positions (CoPE; Golovneva et al. 2024, arXiv:2405.18719, section 3) of a tile of scores.

Positions are integers, in units of 2^-23. One sum gives both the entry of the table and its weight. The compiler may
compute that sum twice, in different orders. In float32 the two results could then lie on different sides of a whole
number, and the logit would be wrong by a whole position. A sum of integers does not depend on the order, and so not on
how keys are divided into tiles and chunks. A gate is rounded by at most half a unit, so n newer keys move a position by
at most n 2^-24, which is what float32 rounds positions by from 1 on. Sums are exact. Decision 34.
"""

from __future__ import annotations

import triton
import triton.language as tl

from posenc_runtime.kernels.attention.paged_tiles import dot

BITS = tl.constexpr(23)  # bits of a fraction, as many as a float32 has
ONE = tl.constexpr(2**23)
_ONE_AS_FLOAT32 = tl.constexpr(0x3F800000)  # the bits of 1.0; adding a fraction to them gives the bits of 1 + fraction


@triton.jit
def logits_at(  # type: ignore[no-untyped-def]
    o_position, b_query, p_pos_emb, qe_scale, NPOS: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr
):
    """``z = qe_scale q.pos_emb`` of each row at the given positions ``[BM, BP]``, 0 at positions past the table.

    Args:
        b_query: ``[BM, BD]``.
        p_pos_emb: ``[HEAD_DIM, NPOS]``, contiguous.
    """
    o_dim = tl.arange(0, BD)
    m_emb = (o_dim < HEAD_DIM)[:, None] & (o_position < NPOS)[None, :]
    b_pos_emb = tl.load(p_pos_emb + o_dim[:, None] * NPOS + o_position[None, :], mask=m_emb, other=0.0)
    return dot(b_query, b_pos_emb) * qe_scale


@triton.jit
def count_keys(p_counts, num_keys, num_saturated):  # type: ignore[no-untyped-def]
    """Count the keys that a program visited: those with positions of their own, and those at the last position."""
    tl.atomic_add(p_counts, (num_keys - num_saturated).to(tl.int64), sem="relaxed")
    tl.atomic_add(p_counts + 1, num_saturated.to(tl.int64), sem="relaxed")


@triton.jit
def gate(b_scores):  # type: ignore[no-untyped-def]
    """``sigmoid`` of base-2 scores, float32; 0 of minus infinity."""
    return reciprocal(1.0 + tl.exp2(-b_scores))


@triton.jit
def reciprocal(b_numbers):  # type: ignore[no-untyped-def]
    """The reciprocal of numbers from 1 to infinity, in one instruction. Triton's own also handles subnormal results."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [b_numbers], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def units(b_gates):  # type: ignore[no-untyped-def]
    """Gates in whole units, int32."""
    return (b_gates + 1.0).to(tl.int32, bitcast=True) - _ONE_AS_FLOAT32


@triton.jit
def sums_by_scan(b_gates):  # type: ignore[no-untyped-def]
    """For each key, the sum of its own gate and those of newer keys in its tile, and the sum of the whole tile.

    Returns:
        Both in whole units, int32: ``[BM, BN]`` and ``[BM]``.

    Args:
        b_gates: float32, oldest key first, of at most 64 keys.
    """
    tl.static_assert(b_gates.shape[1] <= 64)
    b_gates = units(b_gates)
    b_tile = tl.sum(b_gates, 1)
    # The whole sum minus that of older keys. A reversed scan would pass every gate between threads twice more.
    return b_tile[:, None] - tl.cumsum(b_gates, 1) + b_gates, b_tile


@triton.jit
def position(number):  # type: ignore[no-untyped-def]
    """A whole number of positions in units, int64, to compare with sums of gates."""
    return tl.full([], number, tl.int64) << BITS


@triton.jit
def is_saturated(b_newer, NPOS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether all keys older than the summed ones are at the last position, for all rows."""
    return tl.min(b_newer, 0) >= position(NPOS - 1)


@triton.jit
def positions(b_past, b_newer, NPOS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The position of each key of a tile.

    Args:
        b_past: for each key, the sum of its own gate and those of newer keys in its tile, int32 ``[BM, BN]``.
        b_newer: for each row, the sum of the gates of all newer tiles, int64 ``[BM]``.

    Returns:
        A whole position for each row, int32 ``[BM]``, and the distance of each key past it, in units, int32
        ``[BM, BN]``. No key is past the last position.
    """
    b_newer = tl.minimum(b_newer, position(NPOS - 1))
    b_row = (b_newer >> BITS).to(tl.int32)
    b_last = tl.minimum(NPOS - 1 - b_row, 127) << BITS  # 127 positions are more than all gates of a tile and a fraction
    return b_row, tl.minimum(b_past + (b_newer & (ONE - 1)).to(tl.int32)[:, None], b_last[:, None])


@triton.jit
def fraction(b_past):  # type: ignore[no-untyped-def]
    """The fraction of a position, float32."""
    return (b_past & (ONE - 1) | _ONE_AS_FLOAT32).to(tl.float32, bitcast=True) - 1.0

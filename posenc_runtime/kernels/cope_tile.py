"""Triton: contextual positions (CoPE; Golovneva et al. 2024, arXiv:2405.18719, section 3) of a tile of scores.

Positions are integers, in units of 2^-24. A table's entry and what it weighs come from one sum, which the compiler may
compute more than once, adding in different orders where threads hold different parts of it: of float32 the two would
now and then be of different whole numbers, and the logit wrong by a whole position. Integers have one sum, and so
nothing depends on how keys are divided into tiles and chunks either. A gate is rounded by half a unit, and n newer keys
move a position by n 2^-25 at most, what float32 rounds gates by; sums are exact.
"""

from __future__ import annotations

import triton
import triton.language as tl

from posenc_runtime.kernels.paged_tiles import dot

_BITS = tl.constexpr(24)  # of a fraction: a tile of 64 gates and a fraction are below 2^31
_ONE = tl.constexpr(2**24)


@triton.jit
def store_position_logits(  # type: ignore[no-untyped-def]
    p_row, m_row, b_query, p_pos_emb, qe_scale, NPOS: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr
):
    """Write ``z = qe_scale q.pos_emb`` of each row, in base 2, where its logits will be looked up.

    Args:
        qe_scale: in base 2.
        p_row: float32, room for NPOS of each row ``[BM]``.
        b_query: ``[BM, BD]``.
        p_pos_emb: ``[HEAD_DIM, NPOS]``, contiguous.
    """
    BP: tl.constexpr = 32  # positions at a time
    o_dim = tl.arange(0, BD)
    for first in range(0, NPOS, BP):
        o_position = first + tl.arange(0, BP)
        m_position = (o_position < NPOS)[None, :]
        p_column = p_pos_emb + o_dim[:, None] * NPOS + o_position[None, :]
        b_pos_emb = tl.load(p_column, mask=(o_dim < HEAD_DIM)[:, None] & m_position, other=0.0)
        b_logits = dot(b_query, b_pos_emb) * qe_scale
        tl.store(p_row[:, None] + o_position[None, :], b_logits, mask=m_row[:, None] & m_position)


@triton.jit
def count_keys(p_counts, num_keys, num_saturated):  # type: ignore[no-untyped-def]
    """Of a walk over keys: how many were given positions, and how many stood at the last one for all rows."""
    tl.atomic_add(p_counts, (num_keys - num_saturated).to(tl.int64), sem="relaxed")
    tl.atomic_add(p_counts + 1, num_saturated.to(tl.int64), sem="relaxed")


@triton.jit
def gate(b_scores, m_scores):  # type: ignore[no-untyped-def]
    """``sigmoid`` of base-2 scores, 0 where they do not count; int32 in units of 2^-24."""
    b_gates = 1.0 / (1.0 + tl.exp2(-b_scores))
    return tl.where(m_scores, (b_gates * _ONE + 0.5).to(tl.int32), 0)


@triton.jit
def position(whole):  # type: ignore[no-untyped-def]
    """A whole number of positions as what sums of gates are compared with, int64."""
    return tl.full([], whole, tl.int64) << _BITS


@triton.jit
def is_saturated(b_newer, NPOS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether all keys older than those that were summed stand at the last position for all rows."""
    return tl.min(b_newer, 0) >= position(NPOS - 1)


@triton.jit
def position_logits(b_gates, b_newer, p_row, m_scores, NPOS: tl.constexpr):  # type: ignore[no-untyped-def]
    """What the positions of a tile's keys add to their scores, in base 2.

    Args:
        b_gates: ``[BM, BN]``, oldest key first, of at most 64 keys.
        b_newer: of each row the sum of the gates of all newer keys, int64 ``[BM]``.
        p_row: where each row's logits by position lie ``[BM]``.
    """
    tl.static_assert(b_gates.shape[1] <= 64)
    b_newer = tl.minimum(b_newer, position(NPOS - 1))
    b_whole = (b_newer >> _BITS).to(tl.int32)[:, None]
    # From the newest key back is all less what is older. A reversed scan passes every gate between threads twice more.
    b_all = (b_newer & (_ONE - 1)).to(tl.int32) + tl.sum(b_gates, 1)
    b_past = b_all[:, None] - tl.cumsum(b_gates, 1) + b_gates  # past b_whole
    # At the last position the one below weighs nothing, so that the one above is always there to be read.
    b_below = tl.minimum(b_whole + (b_past >> _BITS), NPOS - 2)
    b_weight = tl.minimum(b_past - ((b_below - b_whole) << _BITS), _ONE).to(tl.float32) * (1.0 / _ONE)
    p_below = p_row[:, None] + b_below
    b_logit_below = tl.load(p_below, mask=m_scores, other=0.0)
    b_logit_above = tl.load(p_below + 1, mask=m_scores, other=0.0)
    return b_logit_below * (1.0 - b_weight) + b_logit_above * b_weight

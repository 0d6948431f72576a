"""Triton: cosine and sine of an angle that is a 64-bit fraction of a turn."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cos_sin(b_turns):  # type: ignore[no-untyped-def]
    """float32 cosine and sine of int64 angles in 2^-64 turns, wrong by at most 1.3e-7.

    The nearest quarter turn is subtracted in integers, without an error. The polynomials of Cephes' sinf and cosf take
    the rest, at most an eighth of a turn in either direction. Triton's own cosine would also reduce large float angles,
    which takes local memory and is not needed here.
    """
    b_quarter = (b_turns + (1 << 61)) >> 62
    b_rest = b_turns - (b_quarter << 62)
    b_rest = (b_rest >> 32).to(tl.int32)
    x = b_rest.to(tl.float32) * (6.283185307179586 / 4294967296.0)  # rad, at most pi / 4 to either side
    x2 = x * x
    b_sin = x + x * x2 * (-1.6666654611e-1 + x2 * (8.3321608736e-3 + x2 * -1.9515295891e-4))
    b_cos = 1.0 - 0.5 * x2 + x2 * x2 * (4.166664568298827e-2 + x2 * (-1.388731625493765e-3 + x2 * 2.443315711809948e-5))
    b_quadrant = b_quarter & 3
    m_odd = (b_quadrant & 1) == 1
    b_cosine = tl.where(m_odd, b_sin, b_cos)
    b_sine = tl.where(m_odd, b_cos, b_sin)
    b_cosine = tl.where((b_quadrant == 1) | (b_quadrant == 2), -b_cosine, b_cosine)
    b_sine = tl.where(b_quadrant >= 2, -b_sine, b_sine)
    return b_cosine, b_sine

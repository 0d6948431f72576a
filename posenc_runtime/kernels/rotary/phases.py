"""Frequencies as 64-bit fractions of a turn: an angle is then an integer product, and drops whole turns by overflow."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

# 1 / (2 pi) in units of 2^-192. These digits of pi are enough to round every float32 frequency to 2^-64 turns.
_TURNS_PER_RADIAN = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E410


def phases(inv_freq: Tensor, part: Fraction = Fraction(1)) -> Tensor:
    """``inv_freq``, rounded to float32 as in tables, as a whole number of 2^-64 turns. Decision 27.

    Args:
        inv_freq: rad / token, floating point ``[rotary_dim // 2]``.
        part: multiplies the rounded frequencies, exactly.

    Returns:
        int64 ``[rotary_dim // 2]``, 2^-64 turns / token, modulo one turn.
    """
    return torch.tensor([_phase(value, part) for value in inv_freq.float().tolist()], dtype=torch.int64)


def _phase(inv_freq: float, part: Fraction) -> int:
    numerator, denominator = (Fraction(inv_freq) * part).as_integer_ratio()
    # From 2^-192 to 2^-64 turns, rounded to nearest by adding half of the divisor.
    divisor = denominator << 128
    turns = (numerator * _TURNS_PER_RADIAN + divisor // 2) // divisor
    return (turns + 2**63) % 2**64 - 2**63

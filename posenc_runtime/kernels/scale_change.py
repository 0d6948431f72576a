"""From one scale to another: the angle by which a cached key is turned, exact at any position."""

from __future__ import annotations

import dataclasses
import math
from typing import Self

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies

_TURN = 2**64


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ScaleChange:
    """The difference of two scales.

    An angle is kept in turns, as a 64-bit fixed-point number: position times phase wraps around exactly as an angle
    does, so that the difference of two angles has no rounding however large the position is. What is left is the
    rounding of ``inv_freq`` itself to 2^-64 turns, 3.4e-13 rad at position 1,000,000.

    Attributes:
        phases: int64 ``[rotary_dim // 2]``, turns / token in units of 2^-64: the target's minus the source's.
        attention_ratio: the target's attention factor over the source's.
    """

    phases: Tensor
    attention_ratio: float

    @classmethod
    def between(cls, source: Frequencies, target: Frequencies) -> Self:
        """The change that turns keys of ``source`` into keys of ``target``."""
        phases = [
            _wrapped(_phase(after) - _phase(before))
            for before, after in zip(source.inv_freq.tolist(), target.inv_freq.tolist(), strict=True)
        ]
        return cls(
            phases=torch.tensor(phases, dtype=torch.int64),
            attention_ratio=target.attention_factor / source.attention_factor,
        )

    def cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angle at int64 ``positions`` ``[...]``, times the attention ratio.

        Returns:
            Two float32 tensors ``[..., rotary_dim // 2]``, within one rounding of the exact values.
        """
        turns = positions[..., None] * self.phases.to(positions.device)  # wraps, as it should
        angle = turns.double() * (2 * math.pi / _TURN)  # rad, from -pi to pi
        return (angle.cos() * self.attention_ratio).float(), (angle.sin() * self.attention_ratio).float()


def _phase(inv_freq: float) -> int:
    return round(inv_freq / (2 * math.pi) * _TURN)


def _wrapped(phase: int) -> int:
    return (phase + _TURN // 2) % _TURN - _TURN // 2

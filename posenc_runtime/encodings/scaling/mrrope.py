"""MrRoPE-Pro (ICLR 2026, arXiv:2601.22181): positions as numbers whose radix grows from pair to pair.

Fast and slow pairs are those of YaRN. Between them, YaRN blends two frequencies. MrRoPE-Pro divides each frequency by a
power of the scale, and the power grows with the pair, slowly at first.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.scaling.yarn import band
from posenc_runtime.encodings.spec import Frequencies, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class MrRope:
    """Divides the frequency of pair t of the n between fast and slow ones by ``scale ** (t (t + 1) / (n (n + 1)))``.

    Fast pairs keep their frequency, and that of slow pairs is divided by the scale. The attention factor is YaRN's.

    Attributes:
        beta_fast: a pair with more turns within the trained length keeps its frequency.
        beta_slow: the frequency of a pair with fewer turns is divided by the scale.
        attention_factor: replaces ``0.1 ln s + 1`` at every scale above 1.
    """

    rope_type: ClassVar[str] = "mrrope"
    own_rope_types: ClassVar[tuple[str, ...]] = ("default",)
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        if self.beta_slow <= 0:
            raise ValueError(f"beta_slow must be greater than 0, got {self.beta_slow}")
        if self.beta_fast < self.beta_slow:
            raise ValueError(f"beta_fast must be at least beta_slow {self.beta_slow}, got {self.beta_fast}")
        if self.attention_factor is not None and self.attention_factor <= 0:
            raise ValueError(f"attention_factor must be greater than 0, got {self.attention_factor}")

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        import torch

        inv_freq = Default().frequencies(spec, scale).inv_freq
        if scale == 1:
            return Frequencies(inv_freq)
        low, high = band(spec, spec.original_max_position_embeddings, self.beta_fast, self.beta_slow)
        between = max(high - low, 1)
        digit = (torch.arange(spec.rotary_dim // 2, dtype=torch.float64) - low).clamp(0, between)
        share = digit * (digit + 1) / (between * (between + 1))
        factor = self.attention_factor
        return Frequencies(inv_freq / scale**share, 0.1 * math.log(scale) + 1 if factor is None else factor)


SCALING = MrRope

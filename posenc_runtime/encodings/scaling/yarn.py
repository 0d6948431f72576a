"""YaRN (Peng et al. 2023, arXiv:2309.00071, sections 3.2 to 3.4), with Hugging Face's parameters."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Yarn:
    """Keeps the frequencies of fast pairs, interpolates those of slow pairs, and blends both for the pairs between.

    Attributes:
        beta_fast: a pair with more turns within the trained length keeps its frequency.
        beta_slow: a pair with fewer turns within the trained length is fully interpolated.
        attention_factor: replaces the paper's ``0.1 ln s + 1`` (equation 22) at every scale above 1.
        mscale, mscale_all_dim: together, DeepSeek's form of the attention factor.
        truncate: whether the first and the last pair of the blend are rounded to whole numbers.
    """

    rope_type: ClassVar[str] = "yarn"
    own_rope_type: ClassVar[str] = "default"
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        if self.beta_slow <= 0:
            raise ValueError(f"beta_slow must be greater than 0, got {self.beta_slow}")
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast must exceed beta_slow {self.beta_slow}, got {self.beta_fast}")
        if self.attention_factor is not None and self.attention_factor <= 0:
            raise ValueError(f"attention_factor must be greater than 0, got {self.attention_factor}")
        mscales = (self.mscale, self.mscale_all_dim)
        if (smallest := min((mscale for mscale in mscales if mscale is not None), default=1.0)) <= 0:
            raise ValueError(f"mscale and mscale_all_dim must be greater than 0, got {smallest}")
        if mscales != (None, None) and (None in mscales or self.attention_factor is not None):
            raise ValueError(
                "mscale and mscale_all_dim must be given together, and without attention_factor, got mscale "
                f"{self.mscale}, mscale_all_dim {self.mscale_all_dim} and attention_factor {self.attention_factor}"
            )

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        import torch

        inv_freq = Default().frequencies(spec, scale).inv_freq
        if scale == 1:
            return Frequencies(inv_freq)
        low, high = _pair_turning(spec, self.beta_fast), _pair_turning(spec, self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, spec.rotary_dim - 1)
        if low == high:
            high += 0.001
        pair = torch.arange(spec.rotary_dim // 2, dtype=torch.float64)
        interpolated = ((pair - low) / (high - low)).clamp(0, 1)
        return Frequencies(
            inv_freq * (1 - interpolated) + inv_freq / scale * interpolated, self._attention_factor(scale)
        )

    def _attention_factor(self, scale: float) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is not None and self.mscale_all_dim is not None:
            return _mscale(scale, self.mscale) / _mscale(scale, self.mscale_all_dim)
        return _mscale(scale, 1.0)


def _mscale(scale: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(scale) + 1.0


def _pair_turning(spec: RotarySpec, turns: float) -> float:
    """Index of the pair that turns ``turns`` times over the trained length (equation 17, solved for the pair)."""
    wavelength = spec.original_max_position_embeddings / turns  # tokens / turn
    return spec.rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(spec.rope_theta))


SCALING = Yarn

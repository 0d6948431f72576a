"""NTK-aware scaling (bloc97 2023; Peng et al. 2023, arXiv:2309.00071, section 3.1): a larger base.

The lowest frequency is divided by the scale, and the highest stays as it is. With ``mixed_b`` it is NTK-RoPE-mixed
(Su 2023, kexue.fm/archives/9706), which spreads the scale over the pairs in another way.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ntk:
    """Plain RoPE's frequencies over a base that grows with the scale.

    Attributes:
        mixed_b: the frequency of pair m of n, counted from 1, is divided by ``scale ** ((m / n) ** mixed_b)``; its
            author takes 0.625. None for a larger base.
    """

    rope_type: ClassVar[str] = "ntk"
    own_rope_types: ClassVar[tuple[str, ...]] = ("default",)
    mixed_b: float | None = None

    def __post_init__(self) -> None:
        if self.mixed_b is not None and self.mixed_b <= 0:
            raise ValueError(f"mixed_b must be greater than 0, got {self.mixed_b}")

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        if self.mixed_b is None:
            return Default().frequencies(stretched(spec, scale), scale)
        import torch

        pair = torch.arange(1, spec.rotary_dim // 2 + 1, dtype=torch.float64)
        share = (pair / spec.num_turning_pairs) ** self.mixed_b
        return Frequencies(Default().frequencies(spec, scale).inv_freq / scale**share)


def stretched(spec: RotarySpec, stretch: float) -> RotarySpec:
    """The spec with its base raised so that the lowest frequency above 0 falls by ``stretch``.

    Raises:
        ValueError: when one pair alone is rotated: its frequency is the highest and the lowest.
    """
    if spec.num_turning_pairs == 1:
        raise ValueError(
            "NTK scaling needs 2 rotated pairs, and so rotary_dim of at least 4, got 1 with rotary_dim "
            f"{spec.rotary_dim}: choose another rope_type"
        )
    exponent = spec.rotary_dim / (2 * spec.num_turning_pairs - 2)
    return dataclasses.replace(spec, rope_theta=spec.rope_theta * stretch**exponent)


SCALING = Ntk

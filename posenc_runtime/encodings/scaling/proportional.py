"""p-RoPE (Barbero et al. 2024, arXiv:2410.06205, section 6): the slowest pairs are not rotated.

The authors train with it. Here it is applied past the trained length of a checkpoint that was trained with plain RoPE.
For checkpoints that were trained with it (Gemma 4), it is part of their own rotation, and every method respects it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proportional:
    """Keeps the frequencies of the fastest pairs, and sets the others to 0. The same at every scale above 1.

    Attributes:
        partial_rotary_factor: the share of the pairs that stay rotated.
    """

    rope_type: ClassVar[str] = "proportional"
    own_rope_types: ClassVar[tuple[str, ...]] = ("default",)
    partial_rotary_factor: float = 0.75

    def __post_init__(self) -> None:
        if not 0 < self.partial_rotary_factor <= 1:
            raise ValueError(
                f"partial_rotary_factor must be greater than 0 and at most 1, got {self.partial_rotary_factor}"
            )

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        if scale != 1:
            pairs = max(1, math.floor(self.partial_rotary_factor * spec.num_turning_pairs))
            spec = dataclasses.replace(spec, num_rotated_pairs=pairs)
        return Default().frequencies(spec, scale)


SCALING = Proportional

"""Dynamic NTK (emozilla 2023; Hugging Face ``dynamic``): NTK whose stretch follows the sequence length.

Scale s stands for a sequence of s times the trained length. With ``factor`` 1 the method equals ``ntk``.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.scaling.ntk import stretched
from posenc_runtime.encodings.spec import Frequencies, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dynamic:
    """NTK with a stretch of ``factor * scale - (factor - 1)`` at each scale."""

    rope_type: ClassVar[str] = "dynamic"
    own_rope_type: ClassVar[str] = "default"
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1, got {self.factor}")

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        stretch = self.factor * scale - (self.factor - 1)
        return Default().frequencies(stretched(spec, stretch), scale)


SCALING = Dynamic

"""Position interpolation (Chen et al. 2023, arXiv:2306.15595, equation 4)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """Positions squeezed into the trained length: every frequency is divided by the scale."""

    rope_type: ClassVar[str] = "linear"
    own_rope_type: ClassVar[str] = "default"

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        return Frequencies(Default().frequencies(spec, scale).inv_freq / scale)


SCALING = Linear

"""Position interpolation (Chen et al. 2023, arXiv:2306.15595, equation 4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, OwnRotation, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """Positions squeezed into the trained length: every frequency is divided by ``factor * scale``.

    Attributes:
        factor: divides every frequency at scale 1; 1 for checkpoints that rotate plainly.
    """

    rope_type: ClassVar[str] = "linear"
    own_rope_types: ClassVar[tuple[str, ...]] = ("default", "linear")
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1, got {self.factor}")

    @classmethod
    def of_checkpoint(cls, rope_parameters: Mapping[str, Any], max_position_embeddings: int) -> OwnRotation:
        """Read the lengths and the method's parameters from a checkpoint's configuration.

        ``max_position_embeddings`` is taken for the length after the tuning (Gemma 3, DeepSeek Coder). Checkpoints of
        2023 state the length before it, which is then the shorter trained length.
        """
        return OwnRotation(max_position_embeddings, {"factor": rope_parameters["factor"]})

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        return Frequencies(Default().frequencies(spec, scale).inv_freq / (self.factor * scale))


SCALING = Linear

"""Dynamic NTK (emozilla 2023; Hugging Face ``dynamic``): NTK whose stretch follows the sequence length.

Scale s stands for a sequence of s times the trained length. With ``factor`` 1 and no ``alpha`` the method equals
``ntk``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.scaling.ntk import stretched
from posenc_runtime.encodings.spec import Frequencies, OwnRotation, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dynamic:
    """NTK with a stretch of ``alpha * (factor * scale - (factor - 1))`` at each scale.

    Attributes:
        factor: how much faster the stretch grows than the scale. At scale 1 it changes nothing.
        alpha: the stretch at scale 1, with which a checkpoint was trained (Hunyuan); None for 1, plain RoPE.
    """

    rope_type: ClassVar[str] = "dynamic"
    own_rope_types: ClassVar[tuple[str, ...]] = ("default", "dynamic")
    factor: float = 1.0
    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1, got {self.factor}")
        if self.alpha is not None and self.alpha < 1:
            raise ValueError(f"alpha must be at least 1, got {self.alpha}")

    @classmethod
    def of_checkpoint(cls, rope_parameters: Mapping[str, Any], max_position_embeddings: int) -> OwnRotation:
        """Read the lengths and the method's parameters from a checkpoint's configuration.

        Raises:
            ValueError: when there is neither ``factor`` nor ``alpha``.
        """
        said = {name: value for name in ("factor", "alpha") if (value := rope_parameters.get(name)) is not None}
        if not said:
            raise ValueError(f"rope_parameters of rope_type dynamic must have factor or alpha, got {rope_parameters}")
        return OwnRotation(max_position_embeddings, said)

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        stretch = self.factor * scale - (self.factor - 1)
        if self.alpha is not None:
            stretch *= self.alpha
        return Default().frequencies(stretched(spec, stretch), scale)


SCALING = Dynamic

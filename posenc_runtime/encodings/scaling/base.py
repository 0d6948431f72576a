"""Base scaling, or ABF (Xiong et al. 2023, arXiv:2309.16039, section 4.1): another base, and nothing else.

Without a list of bases, the base follows from the scale as in Liu et al. 2023, arXiv:2310.05209, theorem 1: the pair
that turned exactly once within the trained length then turns once within the longer one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    """Plain RoPE's frequencies over a base that grows with the scale.

    Attributes:
        bases: ``[scale, base]`` for scales above 1; the base of a scale that is not listed follows from the scale.
    """

    rope_type: ClassVar[str] = "base"
    own_rope_types: ClassVar[tuple[str, ...]] = ("default",)
    bases: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        scales = []
        for each in self.bases:
            if len(each) != 2 or each[0] <= 1 or each[1] <= 1:
                raise ValueError(f"bases must be a list of [scale, base], both greater than 1, got {list(each)}")
            scales.append(each[0])
        if len(set(scales)) < len(scales):
            raise ValueError(f"bases must name each scale once, got {scales}")

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        """Plain RoPE's frequencies over the base of the scale.

        Raises:
            ValueError: when the base of the scale is not listed, and no pair turns within the trained length.
        """
        if scale == 1:
            return Default().frequencies(spec, scale)
        base = {at: base for at, base in self.bases}.get(scale) or _base(spec, scale)
        return Default().frequencies(dataclasses.replace(spec, rope_theta=base), scale)


def _base(spec: RotarySpec, scale: float) -> float:
    radians = spec.original_max_position_embeddings / (2 * math.pi)
    if radians <= 1:
        raise ValueError(
            "bases must list the base of every scale where the trained length is below 7 tokens, got "
            f"original_max_position_embeddings {spec.original_max_position_embeddings} and no base of scale {scale:g}"
        )
    return float((scale * radians) ** (math.log(spec.rope_theta) / math.log(radians)))


SCALING = Base

"""NTK-aware scaling (bloc97 2023; Peng et al. 2023, arXiv:2309.00071, section 3.1): a larger base.

The lowest frequency is divided by the scale, and the highest stays as it is.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ntk:
    """Plain RoPE's frequencies over a base that grows with the scale."""

    rope_type: ClassVar[str] = "ntk"
    own_rope_types: ClassVar[tuple[str, ...]] = ("default",)

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        return Default().frequencies(stretched(spec, scale), scale)


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

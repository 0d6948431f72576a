"""RoPE (Su et al. 2021, arXiv:2104.09864, section 3.2.2): the checkpoint's own frequencies at every scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from posenc_runtime.encodings.spec import Frequencies, OwnRotation, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Default:
    """Plain RoPE's frequencies, the same at every scale."""

    rope_type: ClassVar[str] = "default"
    own_rope_types: ClassVar[tuple[str, ...]] = ("default",)

    @classmethod
    def of_checkpoint(cls, rope_parameters: Mapping[str, Any], max_position_embeddings: int) -> OwnRotation:
        return OwnRotation(max_position_embeddings, {})

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        import torch

        element = torch.arange(0, spec.rotary_dim, 2, dtype=torch.float64)
        is_rotated = element < 2 * spec.num_turning_pairs
        return Frequencies(spec.rope_theta ** -(element / spec.rotary_dim) * is_rotated)


SCALING = Default

"""No bias: only the causal mask shows the order of tokens (NoPE; Kazemnejad et al. 2023, arXiv:2305.19466)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from posenc_runtime.encodings.distance import Flat


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoBias:
    """A bias of 0 for every head at every distance.

    Attributes:
        num_heads: query heads.
    """

    bias_type: ClassVar[str] = "none"
    num_heads: int

    def form(self) -> Flat:
        return Flat(self.num_heads)


BIAS = NoBias

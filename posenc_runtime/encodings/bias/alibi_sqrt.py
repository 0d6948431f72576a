"""ALiBi over the square root of the distance, with the same slopes (vLLM's ``use_alibi_sqrt``)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from posenc_runtime.encodings.bias.alibi import Alibi
from posenc_runtime.encodings.distance import Power


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlibiSqrt:
    """A bias that falls with the square root of the distance, by ALiBi's slopes.

    Attributes:
        num_heads, alibi_bias_max: as ALiBi's.

    Raises:
        ValueError: when a value is out of range.
    """

    bias_type: ClassVar[str] = "alibi_sqrt"
    num_heads: int
    alibi_bias_max: float = 8.0

    def __post_init__(self) -> None:
        Alibi(num_heads=self.num_heads, alibi_bias_max=self.alibi_bias_max)

    def form(self) -> Power:
        slope = Alibi(num_heads=self.num_heads, alibi_bias_max=self.alibi_bias_max).slopes()
        return Power(slope, torch.full_like(slope, 0.5))


BIAS = AlibiSqrt

"""ALiBi (Press et al. 2022, arXiv:2108.12409, section 3): each head's bias falls linearly, with a slope of its own."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from posenc_runtime.encodings.distance import Linear


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alibi:
    """A bias that falls linearly with the distance, by a slope for each head.

    Attributes:
        num_heads: query heads of the whole model.
        alibi_bias_max: the flattest head's slope is 2 to the power of minus this (MPT's name; 8 in the paper).

    Raises:
        ValueError: when a value is out of range.
    """

    bias_type: ClassVar[str] = "alibi"
    num_heads: int
    alibi_bias_max: float = 8.0

    def __post_init__(self) -> None:
        if self.num_heads < 1:
            raise ValueError(f"num_heads must be at least 1, got {self.num_heads}")
        if self.alibi_bias_max <= 0:
            raise ValueError(f"alibi_bias_max must be above 0, got {self.alibi_bias_max}")

    def form(self) -> Linear:
        return Linear(self.slopes())

    def slopes(self) -> Tensor:
        """float32 ``[num_heads]``.

        If ``num_heads`` is a power of two, the slopes are a geometric sequence. If not, the first heads take the slopes
        of the next lower power of two, and the others take every second slope of the next higher one (the authors'
        repository, ``get_slopes``).
        """
        whole = 2 ** math.floor(math.log2(self.num_heads))
        between = self._geometric(2 * whole)[::2]
        return torch.cat((self._geometric(whole), between[: self.num_heads - whole])).float()

    def _geometric(self, num_heads: int) -> Tensor:
        steps = torch.arange(1, num_heads + 1, dtype=torch.float64)
        return torch.exp2(-self.alibi_bias_max * steps / num_heads)


BIAS = Alibi

"""T5's relative bias for decoders, learned by distance bucket (Raffel et al. 2020, arXiv:1910.10683, section 2.1)."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from posenc_runtime.encodings.distance import Table


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class T5:
    """A bias learned for each head and each bucket of distances.

    Attributes:
        relative_attention_bias: float32 ``[relative_attention_num_buckets, num_heads]``, learned, as T5 stores it.
        relative_attention_max_distance: tokens; from this distance on, all distances share the last bucket.

    Raises:
        ValueError: when there are fewer than two buckets, or they do not fit below the largest distance.
    """

    bias_type: ClassVar[str] = "t5"
    relative_attention_bias: Tensor
    relative_attention_max_distance: int = 128

    def __post_init__(self) -> None:
        buckets = self.relative_attention_bias.shape[0]
        if buckets < 2:
            raise ValueError(f"relative_attention_bias must hold at least 2 buckets, got {buckets}")
        if self.relative_attention_max_distance <= buckets // 2:
            raise ValueError(
                f"relative_attention_max_distance must be above {buckets // 2}, half the number of buckets, got "
                f"{self.relative_attention_max_distance}"
            )

    def form(self) -> Table:
        # One entry past the largest distance, which is certainly in the last bucket: at the largest distance itself
        # the rounding of the logarithm decides.
        distances = torch.arange(self.relative_attention_max_distance + 1)
        return Table(self.relative_attention_bias.float()[self.bucket(distances)].T.contiguous())

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each distance: half of the buckets hold one distance each, the others grow logarithmically.

        Computed in float32, as T5 does, because rounding decides in which bucket a distance at an edge was trained.

        Args:
            distance: integers, at least 0.
        """
        buckets = self.relative_attention_bias.shape[0]
        exact = buckets // 2
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(
            self.relative_attention_max_distance / exact
        )
        large = exact + (growth * (buckets - exact)).long()
        return torch.where(distance < exact, distance, large.clamp(max=buckets - 1))


BIAS = T5

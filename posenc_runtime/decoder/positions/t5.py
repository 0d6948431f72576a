"""T5's relative bias (Raffel et al. 2020, arXiv:1910.10683, section 2.1), one table for all layers as in T5.

T5 does not scale scores. This decoder does, as Llama, because it is the same for every encoding.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from posenc_runtime.decoder.distance_bias import DistanceBiasEncoding
from posenc_runtime.decoder.rules import require_whole
from posenc_runtime.encodings.bias.t5 import T5


class T5Encoding(DistanceBiasEncoding):
    """A bias learned for each head and each bucket of distances, from one table for all layers.

    Settings:
        relative_attention_num_buckets: rows of the table.
        relative_attention_max_distance: tokens; from this distance on, all distances share the last row.

    Weights:
        relative_attention_bias.weight: ``[relative_attention_num_buckets, num_heads]``.
    """

    defaults: ClassVar = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.relative_attention_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_attention_heads)
        self.max_distance: int = config.relative_attention_max_distance

    @classmethod
    def check(cls, config: Any) -> None:
        buckets, distance = config.relative_attention_num_buckets, config.relative_attention_max_distance
        require_whole("relative_attention_num_buckets", buckets, 2)
        # Half of the buckets hold one distance each. The others need at least one distance beyond those.
        require_whole("relative_attention_max_distance", distance, buckets // 2 + 1)

    def bias(self) -> T5:
        return T5(
            relative_attention_bias=self.relative_attention_bias.weight,
            relative_attention_max_distance=self.max_distance,
        )


ENCODING = T5Encoding

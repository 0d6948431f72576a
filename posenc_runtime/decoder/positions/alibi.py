"""ALiBi (Press et al. 2022, arXiv:2108.12409, section 3). No weights."""

from __future__ import annotations

from typing import Any, ClassVar

from posenc_runtime.decoder.distance_bias import DistanceBiasEncoding
from posenc_runtime.decoder.rules import require_above
from posenc_runtime.encodings.bias import from_parameters
from posenc_runtime.encodings.distance import DistanceBias


class Alibi(DistanceBiasEncoding):
    """A bias that is linear in the distance, with one slope for each head.

    Settings:
        alibi_bias_max: the flattest head's slope is 2 to the power of minus this.
    """

    defaults: ClassVar = {"alibi_bias_max": 8.0}
    bias_type: ClassVar = "alibi"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.parameters_of_bias = {
            "num_heads": config.num_attention_heads,
            "alibi_bias_max": config.alibi_bias_max,
        }

    @classmethod
    def check(cls, config: Any) -> None:
        require_above("alibi_bias_max", config.alibi_bias_max, 0)

    def bias(self) -> DistanceBias:
        return from_parameters(self.bias_type, self.parameters_of_bias)


ENCODING = Alibi

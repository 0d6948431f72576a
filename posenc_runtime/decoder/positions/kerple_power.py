"""KERPLE's power kernel (Chi et al. 2022, arXiv:2205.09921, section 4): -r1 d^r2, one bias for all layers.

The trained weights are unconstrained, as for the logarithmic kernel: the logarithm of r1 and the logit of r2 / 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import initialization

from posenc_runtime.decoder.distance_bias import DistanceBiasEncoding
from posenc_runtime.decoder.positions.kerple_log import share_of_one
from posenc_runtime.encodings.bias.kerple_power import KerplePower


class KerplePowerEncoding(DistanceBiasEncoding):
    """A bias that is a power of the distance, with a trained factor and exponent for each head.

    Weights:
        log_r1: ``[num_heads]``, natural logarithm. Training starts with r1 uniform in (0, 1).
        logit_r2: ``[num_heads]``; r2 is twice its logistic function. Training starts with r2 uniform in (0, 2).
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.log_r1 = nn.Parameter(torch.empty(config.num_attention_heads))
        self.logit_r2 = nn.Parameter(torch.empty(config.num_attention_heads))

    def initialize(self) -> None:
        initialization.copy_(self.log_r1, share_of_one(self.log_r1).log())
        initialization.copy_(self.logit_r2, share_of_one(self.logit_r2).clamp(max=0.99).logit())

    def bias(self) -> KerplePower:
        return KerplePower.from_unconstrained(self.log_r1, self.logit_r2)


ENCODING = KerplePowerEncoding

"""KERPLE's logarithmic kernel (Chi et al. 2022, arXiv:2205.09921, section 4): -r1 log(1 + r2 d), one for all layers.

The authors' repository (chijames/KERPLE) trains r1 and r2 themselves and raises either to 0.01 if it falls below. Here
the logarithms of r1 and r2 are trained, so that both stay above 0, whatever the optimizer does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import initialization

from posenc_runtime.decoder.distance_bias import DistanceBiasEncoding
from posenc_runtime.encodings.bias.kerple_log import KerpleLog


class KerpleLogEncoding(DistanceBiasEncoding):
    """A bias that is logarithmic in the distance, with two trained parameters for each head.

    Weights:
        log_r1, log_r2: ``[num_heads]``, natural logarithms. As in the authors' repository, training starts with r1
            uniform in (0, 2) and r2 uniform in (0, 1).
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.log_r1 = nn.Parameter(torch.empty(config.num_attention_heads))
        self.log_r2 = nn.Parameter(torch.empty(config.num_attention_heads))

    def initialize(self) -> None:
        initialization.copy_(self.log_r1, (2 * share_of_one(self.log_r1)).log())
        initialization.copy_(self.log_r2, share_of_one(self.log_r2).log())

    def bias(self) -> KerpleLog:
        return KerpleLog.from_unconstrained(self.log_r1, self.log_r2)


def share_of_one(like: torch.Tensor) -> torch.Tensor:
    """Random numbers in the shape of ``like``, uniform between the authors' smallest value, 0.01, and 1."""
    return torch.empty_like(like).uniform_(0.01, 1)


ENCODING = KerpleLogEncoding

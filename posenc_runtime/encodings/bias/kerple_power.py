"""KERPLE's power kernel (Chi et al. 2022, arXiv:2205.09921, section 4): b(d) = -r1 d^r2."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from posenc_runtime.encodings.bias.kerple_log import bounded, exponential
from posenc_runtime.encodings.distance import Power


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class KerplePower:
    """A bias that falls with a power of the distance, its factor and its exponent learned for each head.

    Attributes:
        r1: float32 ``[num_heads]``, learned, above 0.
        r2: float32 ``[num_heads]``, learned, above 0 and at most 2.

    Raises:
        ValueError: when r2 is above 2, where the kernel is not conditionally positive definite.
    """

    bias_type: ClassVar[str] = "kerple_power"
    r1: Tensor
    r2: Tensor

    @classmethod
    def from_unconstrained(cls, log_r1: Tensor, logit_r2: Tensor) -> KerplePower:
        """Build the bias from what a checkpoint stores. Whatever is stored, r1 is above 0, and r2 between 0 and 2.

        Args:
            log_r1: ``[num_heads]``, clamped to -16 and 16.
            logit_r2: ``[num_heads]``, clamped to -16 and 16; r2 is twice its logistic function.
        """
        return cls(r1=exponential(log_r1), r2=2 * bounded(logit_r2).sigmoid())

    def __post_init__(self) -> None:
        if (self.r2 > 2).any():
            raise ValueError(f"r2 must be at most 2 for every head, got {self.r2.tolist()}")

    def form(self) -> Power:
        """``-r1 d^r2``, as kernels compute it.

        Raises:
            ValueError: when a parameter is not above 0.
        """
        return Power(self.r1, self.r2)


BIAS = KerplePower

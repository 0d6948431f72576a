"""KERPLE's logarithmic kernel (Chi et al. 2022, arXiv:2205.09921, section 4): b(d) = -r1 log(1 + r2 d)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from posenc_runtime.encodings.distance import Log

# exp(16) and exp(-16) are 9e6 and 1e-7: no useful parameter is beyond them, and float32 holds both.
LOGARITHM_LIMIT = 16.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class KerpleLog:
    """A bias that falls logarithmically with the distance, by two parameters for each head.

    Attributes:
        r1, r2: float32 ``[num_heads]``, learned, above 0.
    """

    bias_type: ClassVar[str] = "kerple_log"
    r1: Tensor
    r2: Tensor

    @classmethod
    def from_unconstrained(cls, log_r1: Tensor, log_r2: Tensor) -> KerpleLog:
        """Build the bias from what a checkpoint stores: logarithms, so that both parameters are above 0.

        Args:
            log_r1, log_r2: ``[num_heads]``, clamped to -16 and 16. Decision 32.
        """
        return cls(r1=exponential(log_r1), r2=exponential(log_r2))

    def form(self) -> Log:
        """``-r1 log(1 + r2 d)``, as kernels compute it.

        Raises:
            ValueError: when a parameter is not above 0. KERPLE's kernel is defined only above 0.
        """
        return Log(self.r1, self.r2)


def exponential(logarithm: Tensor) -> Tensor:
    """``exp(logarithm)`` in at least float32; above 0 and finite, because the logarithm is clamped."""
    return bounded(logarithm).exp()


def bounded(unconstrained: Tensor) -> Tensor:
    exact = unconstrained.to(torch.promote_types(unconstrained.dtype, torch.float32))
    return exact.clamp(-LOGARITHM_LIMIT, LOGARITHM_LIMIT)


BIAS = KerpleLog

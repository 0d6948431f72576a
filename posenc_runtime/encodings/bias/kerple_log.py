"""KERPLE's logarithmic kernel (Chi et al. 2022, arXiv:2205.09921, section 4): b(d) = -r1 log(1 + r2 d)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from posenc_runtime.encodings.distance import Log

# exp(16) and exp(-16) are 9e6 and 1e-7, past any use, and far from where float32 ends.
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
        """Of what a checkpoint stores: training may move logarithms anywhere, and both parameters stay above 0.

        Args:
            log_r1, log_r2: ``[num_heads]``, cut off at 16 and -16. Decision 32.
        """
        return cls(r1=exponential(log_r1), r2=exponential(log_r2))

    def form(self) -> Log:
        """``-r1 log(1 + r2 d)``, as kernels compute it.

        Raises:
            ValueError: when a parameter is not above 0, where the kernel is no longer one.
        """
        return Log(self.r1, self.r2)


def exponential(logarithm: Tensor) -> Tensor:
    """Above 0 and finite for every finite number, at least float32."""
    return bounded(logarithm).exp()


def bounded(unconstrained: Tensor) -> Tensor:
    exact = unconstrained.to(torch.promote_types(unconstrained.dtype, torch.float32))
    return exact.clamp(-LOGARITHM_LIMIT, LOGARITHM_LIMIT)


BIAS = KerpleLog

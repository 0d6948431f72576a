"""KERPLE's logarithmic kernel (Chi et al. 2022, arXiv:2205.09921, section 4): b(d) = -r1 log(1 + r2 d)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from posenc_runtime.encodings.distance import Log


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class KerpleLog:
    """
    Attributes:
        r1, r2: float32 ``[num_heads]``, learned, above 0.
    """

    bias_type: ClassVar[str] = "kerple_log"
    r1: Tensor
    r2: Tensor

    def form(self) -> Log:
        """
        Raises:
            ValueError: when a parameter is not above 0, where the kernel is no longer one.
        """
        return Log(self.r1, self.r2)


BIAS = KerpleLog

"""ALiBi over the square root of the distance, with the same slopes. No weights."""

from __future__ import annotations

from typing import ClassVar

from posenc_runtime.decoder.positions.alibi import Alibi


class AlibiSqrt(Alibi):
    """A bias that is linear in the square root of the distance, with ALiBi's slope for each head.

    Settings: those of ALiBi.
    """

    bias_type: ClassVar = "alibi_sqrt"


ENCODING = AlibiSqrt

"""No encoding: order is known by the causal mask alone (NoPE; Kazemnejad et al. 2023, arXiv:2305.19466)."""

from __future__ import annotations

from posenc_runtime.decoder.encoding import PositionEncoding


class NoEncoding(PositionEncoding):
    """Does nothing."""


ENCODING = NoEncoding

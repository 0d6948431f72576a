"""No encoding: only the causal mask shows the order of tokens (NoPE; Kazemnejad et al. 2023, arXiv:2305.19466)."""

from __future__ import annotations

from posenc_runtime.decoder.encoding import PositionEncoding


class NoEncoding(PositionEncoding):
    """Changes nothing."""


ENCODING = NoEncoding

"""Sinusoidal positions added to the embeddings (Vaswani et al. 2017, arXiv:1706.03762, sections 3.4 and 3.5).

Embeddings are multiplied by ``sqrt(hidden_size)`` first, as section 3.4 says. Sines are in the even columns, cosines in
the odd ones. No weights. The formula works at any position, but a model is trained only up to
``max_position_embeddings``, so later positions are refused.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from posenc_runtime.decoder.encoding import PositionEncoding
from posenc_runtime.decoder.places import Places
from posenc_runtime.decoder.rules import require_even
from posenc_runtime.decoder.sinusoids import angles


class Sinusoidal(PositionEncoding):
    """Embeddings times ``sqrt(hidden_size)``, plus the sines and cosines of their positions."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.max_position_embeddings: int = config.max_position_embeddings

    @classmethod
    def check(cls, config: Any) -> None:
        require_even("hidden_size", config.hidden_size, "sines and cosines alternate")

    @classmethod
    def longest(cls, config: Any, dtype: torch.dtype) -> int:
        return int(config.max_position_embeddings)

    def embed(self, embeddings: Tensor, places: Places) -> Tensor:
        refuse_beyond(self.max_position_embeddings, places)
        angle = angles(places.positions, embeddings.shape[-1])  # rad
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
        return embeddings * math.sqrt(embeddings.shape[-1]) + table.to(embeddings.dtype)


def refuse_beyond(max_position_embeddings: int, places: Places) -> None:
    """Refuse tokens at position ``max_position_embeddings`` or later.

    Raises:
        ValueError: when a token has such a position.
    """
    # A sequence has no more positions than keys, so that positions are read from the device only if keys are too many.
    if places.num_keys > max_position_embeddings and int(places.positions.max()) >= max_position_embeddings:
        raise ValueError(
            f"a sequence must have at most max_position_embeddings {max_position_embeddings} tokens, got "
            f"{int(places.positions.max()) + 1}: the model has no positions for more tokens; shorten the sequence"
        )


ENCODING = Sinusoidal

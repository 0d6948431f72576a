"""Learned positions added to the embeddings (Gehring et al. 2017, arXiv:1705.03122, section 3.1; as in GPT-2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from posenc_runtime.decoder.encoding import PositionEncoding
from posenc_runtime.decoder.places import Places
from posenc_runtime.decoder.positions.sinusoidal import refuse_beyond


class Learned(PositionEncoding):
    """Adds the table's row for a token's position to the token's embedding, which is not scaled.

    Weights:
        embeddings.weight: ``[max_position_embeddings, hidden_size]``.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    @classmethod
    def longest(cls, config: Any, dtype: torch.dtype) -> int:
        return int(config.max_position_embeddings)

    def embed(self, embeddings: Tensor, places: Places) -> Tensor:
        """Each token's embedding plus the table's row for its position.

        Raises:
            ValueError: when a token stands past the last row of the table.
        """
        refuse_beyond(self.embeddings.num_embeddings, places)
        table: Tensor = self.embeddings(places.positions)
        return embeddings + table


ENCODING = Learned

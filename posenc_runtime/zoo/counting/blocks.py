"""Attention in blocks of queries, each over only the keys that the block can see: half of the work in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from posenc_runtime.decoder.attention import summed_in
from posenc_runtime.decoder.encoding import PositionEncoding, Prepared
from posenc_runtime.decoder.places import Places

QUERIES = 64


def attend_in_blocks(model: nn.Module, size: int = QUERIES) -> None:
    """Make every position encoding of the model attend in blocks of ``size`` queries, where no keys are cached."""
    for module in model.modules():
        if isinstance(module, PositionEncoding):
            taken: Any = module
            taken.attend = _in_blocks(module, size)


def _in_blocks(position: PositionEncoding, size: int) -> Callable[..., Tensor]:
    whole = position.attend

    def attend(query: Tensor, key: Tensor, value: Tensor, places: Places, prepared: Prepared, scale: float) -> Tensor:
        if places.num_keys != query.shape[2]:
            return whole(query, key, value, places, prepared, scale)
        blocks = []
        for start in range(0, query.shape[2], size):
            of_queries, of_keys = slice(start, start + size), slice(start + size)
            here = Places(
                places.positions[:, of_queries],
                places.held[:, of_queries],
                places.distance[:, of_queries, of_keys],
                places.visible[:, of_queries, of_keys],
            )
            own = position.prepare(here, summed_in(query.dtype))
            blocks.append(whole(query[:, :, of_queries], key[:, :, of_keys], value[:, :, of_keys], here, own, scale))
        return torch.cat(blocks, dim=2)

    return attend

"""How a launch that turns the heads of several layers is divided into programs. Decision 47."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

HEADS = 8  # the fewest heads of a program, of one or more layers; they share cosines and sines
PROGRAMS = 924  # programs that an H100 runs at once


def division(caches: Sequence[Tensor], num_moves: int, block_size: int, tokens: int) -> tuple[tuple[int, int], int]:
    """The programs of a launch over all heads of these layers, and the heads of each.

    Args:
        caches: ``[num_blocks, num_kv_heads, block_size, row_dim]``, all alike.
        tokens: of a block that a program turns.
    """
    num_tiles, all_heads = num_moves * -(-block_size // tokens), len(caches) * caches[0].shape[1]
    heads = heads_of_program(num_tiles, all_heads)
    return (num_tiles, -(-all_heads // heads)), heads


def heads_of_program(num_tiles: int, all_heads: int) -> int:
    """Heads of a program: as many as still leave about ``PROGRAMS`` programs, or four times as many for many tiles.

    Programs beyond those that a GPU runs at once start later. With four times as many, each is short, so that the GPU
    is not left half empty for long while the last ones run.
    """
    times = 1 if num_tiles <= PROGRAMS // 4 else 4
    return max(HEADS, -(-all_heads // max(1, times * PROGRAMS // num_tiles)))


def addresses(caches: Sequence[Tensor]) -> Tensor:
    """Addresses of the layers' caches on their device, int64 ``[num_layers]``."""
    return _addresses(tuple(cache.data_ptr() for cache in caches), caches[0].device)


@functools.lru_cache(maxsize=16)
def _addresses(of_layers: tuple[int, ...], device: torch.device) -> Tensor:
    # Kept, because a copy to the device waits for it.
    return torch.tensor(of_layers, dtype=torch.int64, device=device)

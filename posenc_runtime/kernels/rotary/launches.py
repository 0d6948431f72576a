"""How a launch that turns the heads of several layers is divided into programs. Decision 47."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

HEADS = 8  # the fewest heads of a program, of one or more layers; they share cosines and sines
PROGRAMS = 924  # programs that an H100 runs at once


def heads_of_program(num_tiles: int, all_heads: int) -> int:
    """Heads of a program: as many as still leave about ``PROGRAMS`` programs, or four times as many for many tiles.

    Programs beyond those that a GPU runs at once start later. With four times as many, each is short, so that the GPU
    is not left half empty for long while the last ones run.
    """
    times = 1 if num_tiles <= PROGRAMS // 4 else 4
    return max(HEADS, -(-all_heads // max(1, times * PROGRAMS // num_tiles)))


@functools.lru_cache(maxsize=16)
def addresses(of_layers: tuple[int, ...], device: torch.device) -> Tensor:
    """Addresses of the layers' caches, int64 ``[num_layers]``. Kept, because a copy to the device waits for it."""
    return torch.tensor(of_layers, dtype=torch.int64, device=device)

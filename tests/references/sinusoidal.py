"""Sinusoidal position embeddings (Vaswani et al. 2017, arXiv:1706.03762, section 3.5).

`PE(pos, 2i) = sin(pos / 10000^(2i / d))` and `PE(pos, 2i + 1) = cos(pos / 10000^(2i / d))`: sine and cosine of one
frequency are neighbours. Transformer-XL's code puts all sines first, then all cosines (`sines_first`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoidal_table(num_positions: int, width: int, *, sines_first: bool = False) -> Tensor:
    """The embedding of every position, `[num_positions, width]`; an odd width ends with a sine."""
    rows = []
    for position in range(num_positions):
        angles = [position / 10000 ** (even / width) for even in range(0, width, 2)]
        sines, cosines = [math.sin(angle) for angle in angles], [math.cos(angle) for angle in angles]
        neighbours = [entry for both in zip(sines, cosines, strict=True) for entry in both]
        rows.append((sines + cosines if sines_first else neighbours)[:width])
    return torch.tensor(rows, dtype=torch.float64)

"""The angles that sinusoidal encodings share: position times a geometric sequence of frequencies."""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 10000.0


def angles(positions: Tensor, size: int) -> Tensor:
    """``position / 10000^(2i / size)`` in float64, exact to 1e-9 rad at any position that a sequence can reach.

    Args:
        positions: of any shape.
        size: number of columns that the sines and cosines fill together; even.

    Returns:
        rad, ``[*positions.shape, size // 2]``.
    """
    exponent = torch.arange(0, size, 2, dtype=torch.float64, device=positions.device) / size
    return positions[..., None].double() * BASE**-exponent

"""How the mean gate of CoPE is set."""

from __future__ import annotations

import torch


def moved_to(gate: float) -> float:
    """By how much normal scores of variance 1 have to be moved for their sigmoids to have that mean."""
    scores = torch.special.ndtri((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (scores + middle).sigmoid().mean() < gate else (low, middle)
    return middle

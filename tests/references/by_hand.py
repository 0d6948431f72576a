"""Sequences so short that attention over them is summed by hand."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def weighted(scores: list[float], values: list[float]) -> float:
    weights = [math.exp(score) for score in scores]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def one_head(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)[:, None]


# Three tokens, of which the last asks: products 1, 5 and 4 with the keys, values 10, 20 and 40.
QUERY, THREE_KEYS, THREE_VALUES = one_head([1, 2]), one_head([3, -1], [1, 2], [0, 2]), one_head([10], [20], [40])
VALUES = [10.0, 20.0, 40.0]

# The query asks from position 1, two frequencies; only its first component is not zero.
ROTARY_PAIR = (one_head([1, 0, 0, 0]), one_head([1, 2, 3, 4], [5, 6, 7, 8]), one_head([10], [20]))
TWO_FREQUENCIES = torch.tensor([0.5, 0.1], dtype=torch.float64)

"""A sequence that was drawn, parameters of encodings for its heads, and what it means that two outputs are the same."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.tolerance import ENCODINGS_DIFFER, ORACLE_FLOAT64

HEADS, KV_HEADS, HEAD_DIM, KEYS, SCALE = 4, 2, 8, 13, 0.4


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sequence(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    query = draw(KEYS, HEADS, HEAD_DIM, seed=seed)
    return query, draw(KEYS, KV_HEADS, HEAD_DIM, seed=seed + 1), draw(KEYS, KV_HEADS, HEAD_DIM, seed=seed + 2)


R1, R2 = (0.5, 1.0, 0.1, 2.0), (1.5, 0.3, 1.0, 0.7)
# Three pairs of eight dimensions: the last two are not rotated.
INV_FREQ = torch.tensor([1.0, 0.3, 0.02], dtype=torch.float64)
COPE_TABLE = draw(5, HEAD_DIM, seed=10)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=ORACLE_FLOAT64, atol=ORACLE_FLOAT64)


def assert_differ(one: Tensor, other: Tensor) -> None:
    assert (one - other).abs().max() > ENCODINGS_DIFFER

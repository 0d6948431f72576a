"""KERPLE, its logarithmic and its power variant (Chi, Fan, Ramadge and Rudnicky 2022, arXiv:2205.09921).

Two learned numbers per head: `-r1 * log(1 + r2 * |m - n|)` with r1, r2 > 0, and `-r1 * |m - n| ** r2` with r1 > 0 and
0 < r2 <= 2. The bias joins the scaled product, as in the authors' repository (chijames/KERPLE, megatron/mpu/layers.py,
`ParallelKerpleLog` and `ParallelKerplePower`, applied in megatron/model/transformer.py). There r1 is `bias_p` and r2
`bias_a` in the logarithmic variant, but r1 is `bias_a` and r2 `bias_p` in the power variant.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.references.attention import causal_attention, distances


def kerple_log_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, r1: Sequence[float], r2: Sequence[float]
) -> Tensor:
    def score(head: int, position: int, q: Tensor, keys: Tensor) -> Tensor:
        return scale * (keys @ q) - r1[head] * torch.log(1 + r2[head] * distances(position))

    return causal_attention(query, key, value, score)


def kerple_power_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, r1: Sequence[float], r2: Sequence[float]
) -> Tensor:
    def score(head: int, position: int, q: Tensor, keys: Tensor) -> Tensor:
        return scale * (keys @ q) - r1[head] * distances(position) ** r2[head]

    return causal_attention(query, key, value, score)

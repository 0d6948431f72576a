"""Causal attention, one query and one head at a time (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# (head, position, the query there, keys 0 to position) -> what the softmax takes, [position + 1].
Score = Callable[[int, int, Tensor, Tensor], Tensor]

# (head, position, values 0 to position) -> the values that the query there gathers, of the same shape.
Gathered = Callable[[int, int, Tensor], Tensor]


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, score: Score, gathered: Gathered | None = None
) -> Tensor:
    """The mean of the values up to each query's own, weighted by the softmax of its scores: `[num_queries, ...]`."""
    for tensor in (query, key, value):
        if tensor.dtype != torch.float64:
            raise TypeError(f"an oracle computes in float64, got {tensor.dtype}")
    num_queries, num_heads, _ = query.shape
    num_keys, num_kv_heads, _ = key.shape
    group = num_heads // num_kv_heads
    output = torch.empty(num_queries, num_heads, value.shape[-1], dtype=torch.float64)
    for head in range(num_heads):
        for index in range(num_queries):
            position = num_keys - num_queries + index
            keys = key[: position + 1, head // group]
            values = value[: position + 1, head // group]
            if gathered is not None:
                values = gathered(head, position, values)
            weights = torch.softmax(score(head, position, query[index, head], keys), dim=-1)
            output[index, head] = weights @ values
    return output


def distances(position: int) -> Tensor:
    """How far keys 0 to `position` lie before the query at `position`: position, ..., 1, 0."""
    return position - torch.arange(position + 1, dtype=torch.float64)

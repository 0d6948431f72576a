"""T5's relative position biases, of a decoder (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

The paper says: a learned scalar per head and bucket, 32 buckets, wider logarithmically up to an offset of 128, beyond
which all share one. The formula of the buckets stands in the code that it was published with, Mesh TensorFlow's
`_relative_position_bucket` with `bidirectional=False`: half of the buckets hold one distance each, and distance `n` of
the others `exact + log(n / exact) / log(max_distance / exact) * (num_buckets - exact)`, cut to a whole number and to
the last bucket. T5 does not scale its products: `scale` is 1 for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.references.attention import causal_attention


def t5_bucket(distance: int, num_buckets: int = 32, max_distance: int = 128) -> int:
    """The bucket of a key that lies `distance` before its query, free of rounding.

    With steps = num_buckets - exact, `log(n / exact) / log(max_distance / exact) * steps >= k` says that
    `n^steps * exact^k >= max_distance^k * exact^steps`, which whole numbers decide.
    """
    exact = num_buckets // 2
    if distance < exact:
        return distance
    steps = num_buckets - exact
    bucket = exact
    while (
        bucket < num_buckets - 1
        and distance**steps * exact ** (bucket + 1 - exact) >= max_distance ** (bucket + 1 - exact) * exact**steps
    ):
        bucket += 1
    return bucket


def t5_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, table: Tensor, max_distance: int = 128
) -> Tensor:
    """Attention with a learned bias per bucket.

    Args:
        table: `[num_buckets, num_heads]`, as `relative_attention_bias` of a checkpoint.
    """
    buckets = torch.tensor([t5_bucket(distance, table.shape[0], max_distance) for distance in range(key.shape[0])])

    def score(head: int, position: int, q: Tensor, keys: Tensor) -> Tensor:
        return scale * (keys @ q) + table[buckets[: position + 1].flip(0), head]

    return causal_attention(query, key, value, score)

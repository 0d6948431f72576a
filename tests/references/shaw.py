"""Relative position representations (Shaw, Uszkoreit and Vaswani 2018, arXiv:1803.02155, sections 3.1 and 3.2).

Equation 4: the score of query i and key j is `scale * q_i . (k_j + aK_ij)`. Equation 3: the output is the weighted sum
of `v_j + aV_ij`. Section 3.2: `a_ij = w[clip(j - i, k)]`, with `clip(x, k) = max(-k, min(k, x))` and tables w of
2k + 1 rows, from -k to k. Of them a causal query reads the first k + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.references.attention import causal_attention


def shaw_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, key_table: Tensor, value_table: Tensor
) -> Tensor:
    """Attention with learned vectors added to keys and values.

    Args:
        key_table, value_table: `[2 * k + 1, head_dim]`, or `[num_heads, 2 * k + 1, head_dim]` for one of each head.
    """
    reach = (key_table.shape[-2] - 1) // 2

    def rows(table: Tensor, head: int, position: int) -> Tensor:
        of_head = table if table.dim() == 2 else table[head]
        offset = torch.arange(position + 1) - position  # j - i
        return of_head[offset.clamp(-reach, reach) + reach]

    def score(head: int, position: int, q: Tensor, keys: Tensor) -> Tensor:
        return scale * ((keys + rows(key_table, head, position)) @ q)

    def gathered(head: int, position: int, values: Tensor) -> Tensor:
        return values + rows(value_table, head, position)

    return causal_attention(query, key, value, score, gathered)

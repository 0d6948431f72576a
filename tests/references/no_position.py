"""Attention without any position encoding: the causal mask alone tells tokens apart.

Scaled dot products of Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1; as a method of its own, NoPE, in
Kazemnejad et al. 2023 (arXiv:2305.19466).
"""

from __future__ import annotations

from torch import Tensor

from tests.references.attention import causal_attention


def no_position_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    def score(head: int, position: int, q: Tensor, keys: Tensor) -> Tensor:
        return scale * (keys @ q)

    return causal_attention(query, key, value, score)

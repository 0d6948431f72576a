"""RoPE with linear attention (Su et al. 2021, arXiv:2104.09864, section 3.3, equation 19), as a recurrence.

The paper's sums over all tokens up to the query are states that each token adds to: rotated keys times values, and
keys. Linear attention's feature map is elu(x) + 1 (Katharopoulos et al. 2020, arXiv:2006.16236, equation 7). The paper
rotates neighbouring dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.references.rotary import positions_of, rotate


def rotary_linear_attention(
    query: Tensor, key: Tensor, value: Tensor, inv_freq: Tensor, *, first_position: int = 0
) -> Tensor:
    """What each query reads, `[num_queries, num_heads, head_dim]`; the queries are those of the last tokens.

    Args:
        inv_freq: radians per token of each pair.
    """
    positions = positions_of(key, first_position)
    length = torch.ones(len(key), len(inv_freq), dtype=torch.float64)
    own = slice(len(key) - len(query), None)
    asks, offers = feature(query), feature(key)
    turned_asks = rotate(asks, positions[own], inv_freq, length[own], is_neox_style=False)
    turned_offers = rotate(offers, positions, inv_freq, length, is_neox_style=False)
    group = query.shape[1] // key.shape[1]
    output = torch.empty(*query.shape[:2], value.shape[-1], dtype=torch.float64)
    for head in range(query.shape[1]):
        numerator = torch.zeros(key.shape[-1], value.shape[-1], dtype=torch.float64)
        denominator = torch.zeros(key.shape[-1], dtype=torch.float64)
        for token in range(len(key)):
            numerator += torch.outer(turned_offers[token, head // group], value[token, head // group])
            denominator += offers[token, head // group]
            index = token - own.start
            if index >= 0:
                output[index, head] = turned_asks[index, head] @ numerator / (asks[index, head] @ denominator)
    return output


def feature(states: Tensor) -> Tensor:
    return torch.where(states > 0, states + 1, states.exp())

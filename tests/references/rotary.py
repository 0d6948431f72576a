"""RoPE (Su et al. 2021, arXiv:2104.09864, section 3.2.2, equations 14 to 16).

The paper rotates neighbouring dimensions (1, 2), (3, 4) and so on (equations 15 and 34), as GPT-J does. GPT-NeoX and
Llama pair dimension i of the first half with dimension i of the second. The attention factor is YaRN's (Peng et al.
2023, arXiv:2309.00071): it multiplies cosines and sines, hence queries and keys, hence scores by its square.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.references.no_position import no_position_attention


def rotary_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    inv_freq: Tensor,
    *,
    is_neox_style: bool,
    attention_factor: float = 1.0,
    first_position: int = 0,
) -> Tensor:
    """Attention among rotated queries and keys.

    Args:
        inv_freq: radians per token of each pair; dimensions beyond twice their number are left alone.
        first_position: of the first key.
    """
    positions = positions_of(key, first_position)
    magnitude = torch.full((len(positions), len(inv_freq)), attention_factor, dtype=torch.float64)
    turned_key = rotate(key, positions, inv_freq, magnitude, is_neox_style)
    own = slice(len(key) - len(query), None)
    turned_query = rotate(query, positions[own], inv_freq, magnitude[own], is_neox_style)
    return no_position_attention(turned_query, turned_key, value, scale)


def positions_of(key: Tensor, first_position: int) -> Tensor:
    return first_position + torch.arange(len(key), dtype=torch.float64)


def rotate(states: Tensor, positions: Tensor, inv_freq: Tensor, magnitude: Tensor, is_neox_style: bool) -> Tensor:
    """Every pair of every token turned by position times frequency, and made longer or shorter.

    Args:
        magnitude: what a pair's length is multiplied by, `[num_tokens, num_pairs]`.
    """
    num_pairs = len(inv_freq)
    rotated = states.clone()
    for pair in range(num_pairs):
        first, second = (pair, pair + num_pairs) if is_neox_style else (2 * pair, 2 * pair + 1)
        angle = positions * inv_freq[pair]
        cos = (magnitude[:, pair] * torch.cos(angle))[:, None]
        sin = (magnitude[:, pair] * torch.sin(angle))[:, None]
        rotated[..., first] = states[..., first] * cos - states[..., second] * sin
        rotated[..., second] = states[..., first] * sin + states[..., second] * cos
    return rotated

"""XPos (Sun et al. 2022, arXiv:2212.10554), as its authors' torchscale computes it.

RoPE whose pair i grows with the position in queries and shrinks with it in keys: by `zeta_i ** (position / scale_base)`
with `zeta_i = (i / (d / 2) + gamma) / (1 + gamma)`, gamma = 0.4 and a scale base of 512
(microsoft/torchscale, torchscale/component/xpos_relative_position.py). The paper's formula has no scale base.

torchscale counts the exponents' positions from the middle of the sequence, to keep them small. Only differences of
positions reach the scores, so the place from which they are counted is left out here. It rotates neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.references.no_position import no_position_attention
from tests.references.rotary import positions_of, rotate


def xpos_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    inv_freq: Tensor,
    *,
    is_neox_style: bool = False,
    scale_base: float = 512,
    gamma: float = 0.4,
    first_position: int = 0,
) -> Tensor:
    """Attention among rotated queries that grow and rotated keys that shrink; arguments as RoPE's."""
    positions = positions_of(key, first_position)
    num_pairs = len(inv_freq)
    zeta = torch.tensor([(pair / num_pairs + gamma) / (1 + gamma) for pair in range(num_pairs)], dtype=torch.float64)
    growth = zeta[None, :] ** (positions[:, None] / scale_base)
    turned_key = rotate(key, positions, inv_freq, 1 / growth, is_neox_style)
    own = slice(len(key) - len(query), None)
    turned_query = rotate(query, positions[own], inv_freq, growth[own], is_neox_style)
    return no_position_attention(turned_query, turned_key, value, scale)

"""Transformer-XL's relative position encoding (Dai et al. 2019, arXiv:1901.02860, section 3.3).

The score of query i and key j has four terms: content `q_i . k_j` (a), `q_i . W_kR R_(i-j)` (b), `u . k_j` (c) and
`v . W_kR R_(i-j)` (d), with R the sinusoidal embedding of the distance and u, v learned vectors. The paper writes the
scores without a scale; its authors' code scales the sum of all four (kimiyoung/transformer-xl,
pytorch/mem_transformer.py, `RelPartialLearnableMultiHeadAttn`), has u, v and W_kR per head, and lays R out with all
sines before all cosines where Vaswani et al., whom the paper cites for R, alternate them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.references.attention import causal_attention
from tests.references.sinusoidal import sinusoidal_table


def transformer_xl_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    u: Tensor,
    v: Tensor,
    position_projection: Tensor,
    *,
    sines_first: bool = True,
) -> Tensor:
    """Attention that adds the four terms.

    Args:
        u, v: `[num_heads, head_dim]`.
        position_projection: W_kR of every query head, `[num_heads, head_dim, width of R]`.
    """
    embeddings = sinusoidal_table(len(key), position_projection.shape[-1], sines_first=sines_first)
    # W_kR R_d of every head and distance, [num_heads, num_keys, head_dim].
    keys_of_distance = torch.einsum("hcw,dw->hdc", position_projection, embeddings)

    def score(head: int, position: int, q: Tensor, keys: Tensor) -> Tensor:
        relative_keys = keys_of_distance[head, : position + 1].flip(0)
        content, content_bias = keys @ q, keys @ u[head]
        distance, distance_bias = relative_keys @ q, relative_keys @ v[head]
        return scale * (content + distance + content_bias + distance_bias)

    return causal_attention(query, key, value, score)

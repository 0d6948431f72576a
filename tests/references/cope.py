"""CoPE, contextual position encoding (Golovneva et al. 2024, arXiv:2405.18719), in its two published conventions.

The method (section 4): gates `g_ij = sigmoid(q_i . k_j)`; positions counted backwards from the query's own key, which
counts too, `p_ij = g_ij + g_i(j+1) + ... + g_ii`; embeddings of fractional positions interpolated linearly between the
two next to them, `e[p] = (p - floor p) e[ceil p] + (1 - p + floor p) e[floor p]`; positions limited to the last row of
the table.

The paper's formula gates with unscaled products. Both of its implementations gate with scaled ones, and differ in what
they scale besides:

* the listing in the paper's appendix B adds `q . e[p]` unscaled to the scaled product;
* the authors' repository (facebookresearch/RAM, projects/cope/src/cope/context_position.py) scales the sum of both,
  unless `--cope-nodiv` asks for what the listing does.

In both, all heads of a layer share one table.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.references.attention import causal_attention


def cope_attention_of_the_listing(query: Tensor, key: Tensor, value: Tensor, scale: float, table: Tensor) -> Tensor:
    """Attention that adds `q . e[p]` to the scaled product.

    Args:
        table: `[num_positions, head_dim]`, or `[num_heads, num_positions, head_dim]` for one of each head.
    """

    def score(head: int, position: int, q: Tensor, keys: Tensor) -> Tensor:
        logits = scale * (keys @ q)
        return logits + _position_logits(q, logits, _of_head(table, head))

    return causal_attention(query, key, value, score)


def cope_attention_of_the_repository(query: Tensor, key: Tensor, value: Tensor, scale: float, table: Tensor) -> Tensor:
    """Attention that adds `q . e[p]` to the product and scales the sum; `table` as above."""

    def score(head: int, position: int, q: Tensor, keys: Tensor) -> Tensor:
        products = keys @ q
        return scale * (products + _position_logits(q, scale * products, _of_head(table, head)))

    return causal_attention(query, key, value, score)


def _position_logits(q: Tensor, gate_logits: Tensor, table: Tensor) -> Tensor:
    """`q . e[p_ij]` for every key j of one query."""
    gates = torch.sigmoid(gate_logits)
    positions = gates.flip(0).cumsum(0).flip(0)  # of key j: the sum of gates j to i
    positions = positions.clamp(max=table.shape[0] - 1)
    floor, ceil = positions.floor(), positions.ceil()
    above = (positions - floor)[:, None] * table[ceil.long()]
    below = (1 - positions + floor)[:, None] * table[floor.long()]
    return (above + below) @ q


def _of_head(table: Tensor, head: int) -> Tensor:
    return table if table.dim() == 2 else table[head]

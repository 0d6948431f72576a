"""Transformer-XL against a sum done by hand, without its parameters, and by the order of its sinusoids."""

from __future__ import annotations

import math

import pytest
import torch

from tests.references.by_hand import QUERY, THREE_KEYS, THREE_VALUES, VALUES, weighted
from tests.references.drawn_sequence import HEAD_DIM, HEADS, SCALE, assert_differ, assert_same, draw, sequence
from tests.references.no_position import no_position_attention
from tests.references.transformer_xl import transformer_xl_attention
from tests.tolerance import ORACLE_FLOAT64


def test_transformer_xl_adds_content_distance_and_both_biases() -> None:
    u, v = torch.tensor([[0.5, 0.25]], dtype=torch.float64), torch.tensor([[-0.5, 3]], dtype=torch.float64)
    projection = torch.tensor([[[2, 1], [0, -1]]], dtype=torch.float64)
    output = transformer_xl_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, u, v, projection)

    def of_distance(distance: int) -> float:
        relative_key = [2 * math.sin(distance) + math.cos(distance), -math.cos(distance)]
        return (1 - 0.5) * relative_key[0] + (2 + 3) * relative_key[1]

    of_content = [1 + 1.25, 5 + 1.0, 4 + 0.5]
    scores = [(content + of_distance(2 - j)) / 2 for j, content in enumerate(of_content)]
    assert output.item() == pytest.approx(weighted(scores, VALUES), rel=ORACLE_FLOAT64)


def test_transformer_xl_without_biases_and_distances_encodes_nothing() -> None:
    nothing = torch.zeros(HEADS, HEAD_DIM, dtype=torch.float64)
    output = transformer_xl_attention(*sequence(), SCALE, nothing, nothing, nothing[..., None].repeat(1, 1, 6))
    assert_same(output, no_position_attention(*sequence(), SCALE))


def test_the_layout_of_transformer_xl_s_sinusoids_is_an_order_of_columns() -> None:
    u, v, projection = draw(HEADS, HEAD_DIM), draw(HEADS, HEAD_DIM, seed=1), draw(HEADS, HEAD_DIM, 6, seed=2)
    reordered = projection[..., [0, 2, 4, 1, 3, 5]]
    alternating = transformer_xl_attention(*sequence(), SCALE, u, v, projection, sines_first=False)
    assert_same(transformer_xl_attention(*sequence(), SCALE, u, v, reordered), alternating)
    assert_differ(transformer_xl_attention(*sequence(), SCALE, u, v, projection), alternating)

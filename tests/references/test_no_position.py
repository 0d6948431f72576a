"""Attention without positions against a sum done by hand, and against torch's."""

from __future__ import annotations

import pytest
import torch

from tests.references.by_hand import QUERY, THREE_KEYS, THREE_VALUES, VALUES, weighted
from tests.references.drawn_sequence import KEYS, SCALE, assert_same, sequence
from tests.references.no_position import no_position_attention
from tests.tolerance import ORACLE_FLOAT64


def test_without_positions_weights_are_the_softmax_of_scaled_products() -> None:
    output = no_position_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5)
    assert output.item() == pytest.approx(weighted([0.5, 2.5, 2.0], VALUES), rel=ORACLE_FLOAT64)


def test_without_positions_it_is_torch_s_attention() -> None:
    query, key, value = sequence()
    visible = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    states = [tensor.transpose(0, 1)[None] for tensor in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *states, attn_mask=visible, scale=SCALE, enable_gqa=True
    )
    assert_same(no_position_attention(query, key, value, SCALE), expected[0].transpose(0, 1))

"""RoPE against sums done by hand, Llama's and GPT-J's, and as a law of differences."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as rotate_as_gptj
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate_as_llama

from tests.references.by_hand import ROTARY_PAIR, THREE_KEYS, TWO_FREQUENCIES, VALUES, one_head, weighted
from tests.references.drawn_sequence import INV_FREQ, KEYS, SCALE, assert_same, sequence
from tests.references.no_position import no_position_attention
from tests.references.rotary import positions_of, rotary_attention
from tests.tolerance import ORACLE_FLOAT64


def test_rope_in_halves_pairs_a_dimension_with_one_half_a_head_away() -> None:
    output = rotary_attention(*ROTARY_PAIR, 0.5, TWO_FREQUENCIES, is_neox_style=True)
    expected = weighted([(math.cos(0.5) * 1 + math.sin(0.5) * 3) / 2, 5 / 2], VALUES[:2])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_rope_in_neighbours_pairs_a_dimension_with_the_next() -> None:
    output = rotary_attention(*ROTARY_PAIR, 0.5, TWO_FREQUENCIES, is_neox_style=False)
    expected = weighted([(math.cos(0.5) * 1 + math.sin(0.5) * 2) / 2, 5 / 2], VALUES[:2])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_rope_leaves_dimensions_beyond_its_pairs_alone() -> None:
    query = one_head([1, 0, 0, 10])
    output = rotary_attention(query, *ROTARY_PAIR[1:], 0.5, TWO_FREQUENCIES[:1], is_neox_style=True, attention_factor=2)
    # The factor multiplies what is rotated, in the query and in the key.
    rotated = [math.cos(0.5) * 1 + math.sin(0.5) * 2, 5]
    expected = weighted([(4 * rotated[0] + 40) / 2, (4 * rotated[1] + 80) / 2], VALUES[:2])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_rope_in_halves_is_llama_s() -> None:
    query, key, value = sequence()
    inv_freq = torch.tensor([1.0, 0.3, 0.02, 0.001], dtype=torch.float64)
    angle = (torch.arange(KEYS, dtype=torch.float64)[:, None] * inv_freq).repeat(1, 2)[None]
    turned = rotate_as_llama(query.transpose(0, 1)[None], key.transpose(0, 1)[None], angle.cos(), angle.sin())
    expected = no_position_attention(*(states[0].transpose(0, 1) for states in turned), value, SCALE)
    assert_same(rotary_attention(query, key, value, SCALE, inv_freq, is_neox_style=True), expected)


def test_rope_in_neighbours_is_gpt_j_s() -> None:
    query, key, value = sequence()
    inv_freq = torch.tensor([1.0, 0.3, 0.02, 0.001], dtype=torch.float64)
    angle = (torch.arange(KEYS, dtype=torch.float64)[:, None] * inv_freq)[None]
    turned = [rotate_as_gptj(states[None], angle.sin(), angle.cos())[0] for states in (query, key)]
    expected = no_position_attention(*turned, value, SCALE)
    assert_same(rotary_attention(query, key, value, SCALE, inv_freq, is_neox_style=False), expected)


def test_positions_may_begin_anywhere() -> None:
    assert positions_of(THREE_KEYS, 100).tolist() == [100, 101, 102]


@pytest.mark.parametrize("is_neox_style", [True, False])
def test_rope_knows_only_differences_of_positions(is_neox_style: bool) -> None:
    here, there = (
        rotary_attention(*sequence(), SCALE, INV_FREQ, is_neox_style=is_neox_style, first_position=first)
        for first in (0, 100)
    )
    assert_same(here, there)

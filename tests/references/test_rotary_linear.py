"""RoPE with linear attention against a sum done by hand, and as a law of differences; the decoder's against both."""

from __future__ import annotations

import math

import pytest
import torch

from tests.decoder.test_encodings import built
from tests.references.by_hand import TWO_FREQUENCIES, one_head
from tests.references.drawn_sequence import HEAD_DIM, INV_FREQ, SCALE, assert_differ, assert_same, sequence
from tests.references.rotary_linear import rotary_linear_attention
from tests.tolerance import ORACLE_FLOAT64


def test_the_numerator_is_rotated_and_the_denominator_is_not() -> None:
    # The feature map makes [1, 1, 1, 2] of the query, and [2, 1, 1, 1] and [1, 1, 1, 3] of the keys.
    query, keys, values = one_head([0, 0, 0, 1]), one_head([1, 0, 0, 0], [0, 0, 0, 2]), one_head([10], [20])
    found = rotary_linear_attention(query, keys, values, TWO_FREQUENCIES)
    first_pair = math.cos(0.5) * (1 * 2 + 1 * 1) + math.sin(0.5) * (1 * 1 - 1 * 2)
    second_pair = math.cos(0.1) * (1 * 1 + 2 * 1) + math.sin(0.1) * (1 * 1 - 2 * 1)
    numerator = 10 * (first_pair + second_pair) + 20 * (1 + 1 + 1 + 2 * 3)
    assert found.item() == pytest.approx(numerator / (2 + 1 + 1 + 2 + 1 + 1 + 1 + 6), rel=ORACLE_FLOAT64)


def test_it_knows_only_differences_of_positions() -> None:
    query, key, value = sequence()
    here, there = (rotary_linear_attention(query, key, value, INV_FREQ, first_position=first) for first in (0, 100))
    assert_same(here, there)
    assert_differ(here, rotary_linear_attention(query, key, value, 0 * INV_FREQ))


def test_the_last_queries_alone_read_what_they_read_among_all() -> None:
    query, key, value = sequence()
    alone = rotary_linear_attention(query[-5:], key, value, INV_FREQ)
    assert_same(alone, rotary_linear_attention(query, key, value, INV_FREQ)[-5:])


def test_the_decoder_computes_the_recurrence() -> None:
    query, key, value = sequence()
    position = built("rope_linear_attention", head_dim=HEAD_DIM)
    batched = (states.transpose(0, 1)[None] for states in (query, key, value))
    found = position.attention(*batched, SCALE)[0].transpose(0, 1)
    inv_freq = 10000.0 ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    assert_same(found, rotary_linear_attention(query, key, value, inv_freq))

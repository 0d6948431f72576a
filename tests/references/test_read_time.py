"""The oracle of read-time positions against the papers' own statements, and sums by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from tests.references.by_hand import weighted
from tests.references.drawn_sequence import INV_FREQ, SCALE, assert_differ, assert_same, sequence
from tests.references.read_time import (
    dual_chunk_distance,
    logn_factor,
    no_factor,
    read_time_attention,
    rerope_distance,
    yarn_factor,
)
from tests.references.rotary import rotary_attention


@pytest.mark.parametrize("is_neox_style", [True, False], ids=["neox", "gptj"])
def test_within_the_trained_length_it_is_plain_rope(is_neox_style: bool) -> None:
    query, key, value = sequence()
    found = read_time_attention(
        query, key, value, SCALE, INV_FREQ, rerope_distance(13, 4, 2), logn_factor(13, 13), is_neox_style=is_neox_style
    )
    assert_same(found, rotary_attention(query, key, value, SCALE, INV_FREQ, is_neox_style=is_neox_style))
    beyond = read_time_attention(
        query, key, value, SCALE, INV_FREQ, rerope_distance(12, 4, 2), no_factor, is_neox_style=is_neox_style
    )
    assert_same(beyond[:12], found[:12])
    assert_differ(beyond[12:], found[12:])


def test_pages_of_one_key_are_rerope_and_leaky_rerope() -> None:
    plain, leaky = rerope_distance(6, 4, 1), rerope_distance(6, 4, 1, Fraction(8))
    for i in range(6, 26):
        for j in range(i + 1):
            assert plain(i, j) == min(i - j, 4)
            assert leaky(i, j) == (i - j if i - j < 4 else min(4 + Fraction(i - j - 4, 8), 5))


def test_dual_chunks_are_those_of_the_papers_figure() -> None:
    # Figure 2: a chunk of 6 tokens, trained on 10, 12 tokens; its matrix is written out for i = 5, 6, 9 and 11.
    distance = dual_chunk_distance(0, 9, 3)
    rows = {i: [distance(i, j) for j in range(i + 1)] for i in (5, 6, 9, 11)}
    assert rows[5] == [5, 4, 3, 2, 1, 0]
    assert rows[6] == [6, 5, 4, 3, 2, 1, 0]
    assert rows[9] == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert rows[11] == [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0]
    assert [distance(13, j) for j in range(14)] == [9, 8, 7, 6, 5, 4, 7, 6, 5, 4, 3, 2, 1, 0]


def test_factors_are_one_below_the_trained_length_and_grow_with_the_position() -> None:
    assert logn_factor(100, 100)(99) == yarn_factor(100, 100)(99) == 1.0
    assert logn_factor(100, 100)(9_999) == pytest.approx(2.0)
    assert yarn_factor(100, 100)(99 + 900) == pytest.approx((1 + math.log(10) / 10) ** 2)
    assert yarn_factor(100, 500)(200) == 1.0


def test_a_sink_and_a_cap_are_what_a_sum_by_hand_says() -> None:
    query, key = torch.tensor([[[2.0]]]).double(), torch.tensor([[[1.0]], [[3.0]]]).double()
    value = torch.tensor([[[10.0]], [[20.0]]]).double()
    found = read_time_attention(
        query,
        key,
        value,
        0.5,
        torch.zeros(0).double(),
        lambda i, j: i - j,
        lambda i: 3.0,
        is_neox_style=True,
        sinks=torch.tensor([4.0]).double(),
        soft_cap=5.0,
    )
    scores = [5 * math.tanh(3.0 / 5), 5 * math.tanh(9.0 / 5)]
    assert found.item() == pytest.approx(weighted([*scores, 4.0], [10.0, 20.0, 0.0]))

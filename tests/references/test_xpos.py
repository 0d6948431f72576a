"""XPos against a sum done by hand, and where it is RoPE."""

from __future__ import annotations

import math

import pytest

from tests.references.by_hand import ROTARY_PAIR, TWO_FREQUENCIES, VALUES, one_head, weighted
from tests.references.drawn_sequence import INV_FREQ, SCALE, assert_same, sequence
from tests.references.rotary import rotary_attention
from tests.references.xpos import xpos_attention
from tests.tolerance import ORACLE_FLOAT64


def test_xpos_shrinks_scores_with_the_distance() -> None:
    query = one_head([1, 0, 1, 0])
    output = xpos_attention(query, *ROTARY_PAIR[1:], 0.5, TWO_FREQUENCIES, scale_base=3)
    # zeta is (0 + 0.4) / 1.4 and (0.5 + 0.4) / 1.4.
    first = (2 / 7) ** (1 / 3) * (math.cos(0.5) * 1 + math.sin(0.5) * 2)
    second = (9 / 14) ** (1 / 3) * (math.cos(0.1) * 3 + math.sin(0.1) * 4)
    expected = weighted([(first + second) / 2, (5 + 7) / 2], VALUES[:2])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


@pytest.mark.parametrize("is_neox_style", [True, False])
def test_xpos_with_an_infinite_scale_base_is_rope(is_neox_style: bool) -> None:
    output = xpos_attention(*sequence(), SCALE, INV_FREQ, is_neox_style=is_neox_style, scale_base=math.inf)
    assert_same(output, rotary_attention(*sequence(), SCALE, INV_FREQ, is_neox_style=is_neox_style))


def test_xpos_knows_only_differences_of_positions() -> None:
    here, there = (
        xpos_attention(*sequence(), SCALE, INV_FREQ, scale_base=64, first_position=first) for first in (0, 100)
    )
    assert_same(here, there)

"""KERPLE against sums done by hand, and where it is ALiBi."""

from __future__ import annotations

import math

import pytest

from tests.references.alibi import alibi_attention, alibi_sqrt_attention
from tests.references.by_hand import QUERY, THREE_KEYS, THREE_VALUES, VALUES, weighted
from tests.references.drawn_sequence import HEADS, R1, SCALE, assert_same, sequence
from tests.references.kerple import kerple_log_attention, kerple_power_attention
from tests.tolerance import ORACLE_FLOAT64


def test_kerple_falls_with_the_logarithm_of_the_distance() -> None:
    output = kerple_log_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, [0.75], [3.0])
    expected = weighted([0.5 - 0.75 * math.log(7), 2.5 - 0.75 * math.log(4), 2.0], VALUES)
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_kerple_falls_with_a_power_of_the_distance() -> None:
    output = kerple_power_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, [0.75], [1.5])
    expected = weighted([0.5 - 0.75 * 2**1.5, 2.5 - 0.75, 2.0], VALUES)
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_kerple_of_the_first_power_is_alibi() -> None:
    power = kerple_power_attention(*sequence(), SCALE, R1, [1.0] * HEADS)
    assert_same(power, alibi_attention(*sequence(), SCALE, R1))


def test_kerple_of_the_power_of_a_half_is_alibi_of_the_root() -> None:
    power = kerple_power_attention(*sequence(), SCALE, R1, [0.5] * HEADS)
    assert_same(power, alibi_sqrt_attention(*sequence(), SCALE, R1))

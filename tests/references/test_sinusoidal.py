"""The table of sines and cosines against values done by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tests.references.drawn_sequence import assert_same
from tests.references.sinusoidal import sinusoidal_table
from tests.tolerance import ORACLE_FLOAT64


def test_sine_and_cosine_of_a_frequency_are_neighbours() -> None:
    expected = [[0, 1, 0, 1], [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]]
    assert_same(sinusoidal_table(2, 4), torch.tensor(expected, dtype=torch.float64))


def test_sines_may_come_before_cosines() -> None:
    expected = [[0, 0, 1, 1], [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)]]
    assert_same(sinusoidal_table(2, 4, sines_first=True), torch.tensor(expected, dtype=torch.float64))


def test_the_longest_wavelength_stays_below_10000_turns() -> None:
    table = sinusoidal_table(3, 512)
    assert table[2, 510].item() == pytest.approx(math.sin(2 / 10000 ** (510 / 512)), rel=ORACLE_FLOAT64)
    assert table.shape == (3, 512)


def test_an_odd_width_ends_with_a_sine() -> None:
    expected = [[0, 1, 0], [math.sin(1), math.cos(1), math.sin(10000 ** (-2 / 3))]]
    assert_same(sinusoidal_table(2, 3), torch.tensor(expected, dtype=torch.float64))

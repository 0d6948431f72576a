"""What encodings do with distance, by the formulas of their papers, and the picture of it."""

from __future__ import annotations

import math
import pathlib

import pytest
import torch

from posenc_runtime.zoo.lengths.recipe import WEIGHTS
from server.plots import style
from tests.benchmarks.decay import biases, draw, read, shares
from tests.tolerance import ROUNDED_TO_FLOAT32

DISTANCES = torch.tensor([0, 1, 7, 100, 1000])
# The fastest pair turns 1 rad a token, and frequencies are rounded to float32.
TURNED = 1000 * ROUNDED_TO_FLOAT32


def test_alibis_bias_is_its_slope_times_the_distance() -> None:
    slopes = [2 ** (-8 * head / 4) for head in (1, 2, 3, 4)]
    expected = [[-slope * distance for distance in DISTANCES.tolist()] for slope in slopes]
    found = biases(read(WEIGHTS / "text" / "alibi"), DISTANCES)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_t5s_bias_stays_the_same_from_its_largest_distance_on() -> None:
    found = biases(read(WEIGHTS / "text" / "t5"), torch.tensor([127, 128, 5000]))
    assert found.shape == (4, 3)
    assert found[:, 1].equal(found[:, 2])


def test_a_rotated_score_is_the_mean_of_its_pairs_cosines() -> None:
    frequencies = [10000 ** (-2 * pair / 32) for pair in range(16)]
    expected = [sum(math.cos(distance * one) for one in frequencies) / 16 for distance in DISTANCES.tolist()]
    found = shares(read(WEIGHTS / "text" / "rope"), 32, DISTANCES)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=TURNED)


def test_each_pair_of_xpos_decays_by_its_zeta() -> None:
    pairs = [(10000 ** (-2 * pair / 32), (2 * pair / 32 + 0.4) / 1.4) for pair in range(16)]
    expected = [
        sum(math.cos(distance * turn) * zeta ** (distance / 512) for turn, zeta in pairs) / 16
        for distance in DISTANCES.tolist()
    ]
    found = shares(read(WEIGHTS / "text" / "xpos"), 32, DISTANCES)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=TURNED)


def test_an_encoding_that_turns_queries_has_no_bias() -> None:
    with pytest.raises(TypeError, match="got Rope"):
        biases(read(WEIGHTS / "text" / "rope"), DISTANCES)


def test_the_picture_names_every_encoding_that_it_draws(tmp_path: pathlib.Path) -> None:
    drawn = draw(WEIGHTS / "text", furthest=64)
    named = {text.get_text() for axes in drawn.axes for text in axes.get_legend().get_texts()}
    assert named == {"alibi", "kerple_log", "kerple_power", "t5", "rope", "xpos"}
    style.save(drawn, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")

"""Base scaling: the base of each scale."""

from __future__ import annotations

import math

import pytest
import torch

from posenc_runtime.encodings.scaling import from_parameters
from posenc_runtime.encodings.spec import RotarySpec
from tests.tolerance import ORACLE_FLOAT64

SPEC = RotarySpec(rotary_dim=64, rope_theta=10_000.0, original_max_position_embeddings=2048)


def test_listed_bases_are_plain_rope_over_them() -> None:
    scaling = from_parameters("base", {"bases": [[2, 5e5], [4, 1e6]]})
    for scale, base in ((1.0, 1e4), (2.0, 5e5), (4.0, 1e6)):
        expected = torch.tensor([base ** (-2 * pair / 64) for pair in range(32)], dtype=torch.float64)
        torch.testing.assert_close(scaling.frequencies(SPEC, scale).inv_freq, expected, rtol=ORACLE_FLOAT64, atol=0)
        assert scaling.frequencies(SPEC, scale).attention_factor == 1.0


@pytest.mark.parametrize("scale", [2.0, 3.5, 16.0])
def test_a_base_that_is_not_listed_slows_the_pair_of_one_turn_by_the_scale(scale: float) -> None:
    inv_freq = from_parameters("base", {}).frequencies(SPEC, scale).inv_freq
    base = float(inv_freq[1]) ** (-64 / 2)
    once = 64 * math.log(2048 / (2 * math.pi)) / (2 * math.log(10_000.0))  # that pair, which need not be whole
    turns = scale * 2048 * base ** (-2 * once / 64) / (2 * math.pi)
    assert turns == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize(
    ("bases", "rule"),
    [
        ([[1, 1e6]], r"bases must be a list of \[scale, base\], both greater than 1, got \[1, 1000000.0\]"),
        ([[2, 1e6, 3]], r"got \[2, 1000000.0, 3\]"),
        ([[2, 1e6], [2.0, 1e7]], r"bases must name each scale once, got \[2, 2.0\]"),
        ([["2", 1e6]], r"bases must be a list, each a list, each a finite number"),
    ],
)
def test_bases_that_cannot_be_meant_are_refused(bases: list[list[float]], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        from_parameters("base", {"bases": bases})


def test_a_trained_length_without_a_whole_turn_needs_a_list() -> None:
    spec = RotarySpec(rotary_dim=64, rope_theta=10_000.0, original_max_position_embeddings=6)
    with pytest.raises(ValueError, match=r"bases must list the base of every scale .* 6 and no base of scale 2"):
        from_parameters("base", {}).frequencies(spec, 2.0)

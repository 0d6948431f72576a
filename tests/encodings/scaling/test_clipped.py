"""Clipped RoPE against the numbers of a cosine, by hand."""

from __future__ import annotations

import math

import pytest

from posenc_runtime.encodings.scaling import from_parameters
from posenc_runtime.encodings.spec import RotarySpec
from tests.tolerance import ORACLE_FLOAT64

SPEC = RotarySpec(rotary_dim=128, rope_theta=500_000.0, original_max_position_embeddings=8192)


def test_the_slowest_20_of_64_pairs_fade_from_their_frequency_to_0() -> None:
    plain, clipped = (from_parameters("clipped", {}).frequencies(SPEC, scale).inv_freq for scale in (1.0, 4.0))
    assert (clipped[:45] == plain[:45]).all()  # the first of the 20 has the cosine of 0
    fade = [(1 + math.cos(math.pi * step / 19)) / 2 for step in range(20)]
    assert (clipped[44:] / plain[44:]).tolist() == pytest.approx(fade, abs=ORACLE_FLOAT64)
    assert clipped[63] == 0


def test_the_scale_changes_nothing_more() -> None:
    scaling = from_parameters("clipped", {"clip_low_n": 8})
    assert (scaling.frequencies(SPEC, 2.0).inv_freq == scaling.frequencies(SPEC, 32.0).inv_freq).all()
    assert scaling.frequencies(SPEC, 2.0).attention_factor == 1.0


def test_more_pairs_than_are_rotated_are_refused() -> None:
    with pytest.raises(ValueError, match="clip_low_n must be at most 64, the number of rotated pairs, got 65"):
        from_parameters("clipped", {"clip_low_n": 65}).frequencies(SPEC, 2.0)

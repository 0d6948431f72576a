"""p-RoPE: which pairs stay rotated."""

from __future__ import annotations

import dataclasses

import pytest

from posenc_runtime.encodings.scaling import from_parameters
from posenc_runtime.encodings.spec import RotarySpec

SPEC = RotarySpec(rotary_dim=64, rope_theta=10_000.0, original_max_position_embeddings=2048)


@pytest.mark.parametrize(("share", "rotated"), [(0.75, 24), (0.5, 16), (1.0, 32), (0.01, 1)])
@pytest.mark.parametrize("scale", [2.0, 8.0])
def test_the_fastest_pairs_keep_their_frequency_and_the_others_stand_still(
    share: float, rotated: int, scale: float
) -> None:
    inv_freq = from_parameters("proportional", {"partial_rotary_factor": share}).frequencies(SPEC, scale).inv_freq
    plain = from_parameters("proportional", {}).frequencies(SPEC, 1.0).inv_freq
    assert (plain > 0).all()
    assert (inv_freq[:rotated] == plain[:rotated]).all() and (inv_freq[rotated:] == 0).all()


def test_of_a_checkpoint_that_rotates_some_pairs_a_share_of_these_stays() -> None:
    spec = dataclasses.replace(SPEC, num_rotated_pairs=8)
    inv_freq = from_parameters("proportional", {"partial_rotary_factor": 0.5}).frequencies(spec, 2.0).inv_freq
    assert (inv_freq[:4] > 0).all() and (inv_freq[4:] == 0).all()

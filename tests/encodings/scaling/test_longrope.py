"""LongRoPE's own parameters: where the checkpoint holds one attention factor for each side of its trained length."""

from __future__ import annotations

import dataclasses
import math

import pytest

from posenc_runtime.encodings.scaling.longrope import LongRope
from posenc_runtime.encodings.spec import RotarySpec

SPEC = RotarySpec(rotary_dim=4, rope_theta=10_000.0, original_max_position_embeddings=4096)
LISTS = {"short_factor": [1.0, 2.0], "long_factor": [1.0, 8.0]}


def test_two_attention_factors_replace_the_one_that_follows_from_the_lengths() -> None:
    method = LongRope(**LISTS, factor=32.0, short_mscale=1.1, long_mscale=1.3)
    assert [method.frequencies(SPEC, scale).attention_factor for scale in (1.0, 2.0, 32.0)] == [1.1, 1.3, 1.3]


def test_a_list_that_does_not_fit_the_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="long_factor must hold 2 numbers, one for each pair, got 0"):
        LongRope(short_factor=[1.0, 2.0], factor=32.0).frequencies(SPEC, 2.0)


def test_an_attention_factor_that_nobody_says_is_refused() -> None:
    with pytest.raises(ValueError, match="factor or attention_factor must be given, got neither"):
        LongRope(**LISTS).frequencies(SPEC, 1.0)


FOLLOWS = math.sqrt(1 + math.log(32) / math.log(4096))


@pytest.mark.parametrize(
    ("said", "longest", "expected"),
    [
        pytest.param({}, 131072, FOLLOWS, id="nothing"),
        pytest.param({"factor": None, "attention_factor": None}, 131072, FOLLOWS, id="null"),
        pytest.param({"factor": 32.0, "attention_factor": FOLLOWS}, 131072, FOLLOWS, id="what-follows"),
        pytest.param({"attention_factor": 2.0, "short_mscale": 1.2, "long_mscale": 1.3}, 131072, 1.2, id="mscales"),
        pytest.param({}, 2048, 1.0, id="no-longer-than-trained"),
    ],
)
def test_a_checkpoint_s_attention_factor_is_made_of_its_own_trained_length(
    said: dict[str, float | None], longest: int, expected: float
) -> None:
    trained, parameters, _ = LongRope.of_checkpoint(LISTS | {"original_max_position_embeddings": 4096} | said, longest)
    sooner = dataclasses.replace(SPEC, original_max_position_embeddings=1024)
    assert trained == 4096
    assert LongRope(**parameters).frequencies(sooner, 1.0).attention_factor == expected


@pytest.mark.parametrize("said", [{"factor": 8.0}, {"attention_factor": 1.25}, {"factor": 8.0, "short_mscale": 1.2}])
def test_an_attention_factor_that_does_not_follow_from_the_lengths_is_refused(
    said: dict[str, float],
) -> None:
    with pytest.raises(
        ValueError, match=r"must agree with its lengths, which give an attention factor of 1\.19024, got"
    ):
        LongRope.of_checkpoint(LISTS | {"original_max_position_embeddings": 4096} | said, 131072)


def test_a_factor_of_which_nothing_would_be_made_is_refused() -> None:
    with pytest.raises(ValueError, match=r"factor must be left out, because .* give attention_factor 1\.2"):
        LongRope(**LISTS, factor=32.0, attention_factor=1.2)


def test_a_plain_checkpoint_stays_plain_at_scale_1_and_gets_the_users_factors_above() -> None:
    method = LongRope(long_factor=[1.0, 8.0])
    plain, scaled = (method.frequencies(SPEC, scale) for scale in (1.0, 4.0))
    assert plain.inv_freq.tolist() == [1.0, 10_000.0**-0.5] and plain.attention_factor == 1.0
    assert scaled.inv_freq.tolist() == [1.0, 10_000.0**-0.5 / 8]
    assert scaled.attention_factor == math.sqrt(1 + math.log(4) / math.log(4096))
    assert method.frequencies(SPEC, 8.0).attention_factor == math.sqrt(1 + math.log(8) / math.log(4096))

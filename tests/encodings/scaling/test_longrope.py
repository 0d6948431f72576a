"""LongRoPE's own parameters: where the checkpoint holds one attention factor for each side of its trained length."""

from __future__ import annotations

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
    with pytest.raises(ValueError, match="factor must be given where attention_factor is not"):
        LongRope(**LISTS).frequencies(SPEC, 1.0)

"""MrRoPE-Pro against its formula, pair by pair in plain Python."""

from __future__ import annotations

import math

import pytest

from posenc_runtime.encodings.scaling import from_parameters
from posenc_runtime.encodings.spec import RotarySpec
from tests.tolerance import ORACLE_FLOAT64

# Llama 3: 64 pairs; 32 turns within 8,192 tokens are those of pair 18, one turn is that of pair 35.
LLAMA_3 = RotarySpec(rotary_dim=128, rope_theta=500_000.0, original_max_position_embeddings=8192)
FIRST, LAST = 18, 35


@pytest.mark.parametrize("scale", [2.0, 16.0])
def test_between_fast_and_slow_pairs_the_power_of_the_scale_grows_by_equal_steps(scale: float) -> None:
    found = from_parameters("mrrope", {}).frequencies(LLAMA_3, scale)
    steps = LAST - FIRST
    for pair in range(64):
        t = min(max(pair - FIRST, 0), steps)
        power = sum(range(1, t + 1)) / sum(range(1, steps + 1))
        expected = 500_000.0 ** (-2 * pair / 128) / scale**power
        assert float(found.inv_freq[pair]) == pytest.approx(expected, rel=ORACLE_FLOAT64)
    assert found.attention_factor == pytest.approx(1 + math.log(scale) / 10, rel=ORACLE_FLOAT64)


def test_the_pairs_at_the_ends_are_yarns() -> None:
    ours, yarn = (from_parameters(name, {}).frequencies(LLAMA_3, 4.0).inv_freq for name in ("mrrope", "yarn"))
    assert (ours[: FIRST + 1] == yarn[: FIRST + 1]).all()
    assert ((ours[LAST:] - yarn[LAST:]).abs() <= ORACLE_FLOAT64 * yarn[LAST:]).all()
    assert (ours[FIRST + 1 : LAST] != yarn[FIRST + 1 : LAST]).all()


def test_an_attention_factor_that_is_given_holds_at_every_scale_above_1() -> None:
    scaling = from_parameters("mrrope", {"attention_factor": 1.25})
    assert [scaling.frequencies(LLAMA_3, scale).attention_factor for scale in (1.0, 2.0, 8.0)] == [1.0, 1.25, 1.25]


def test_where_no_pair_lies_between_all_slow_ones_are_divided_by_the_scale() -> None:
    scaling = from_parameters("mrrope", {"beta_fast": 1.0, "beta_slow": 1.0})
    spec = RotarySpec(rotary_dim=4, rope_theta=10.0, original_max_position_embeddings=7)
    plain, scaled = (scaling.frequencies(spec, scale).inv_freq for scale in (1.0, 4.0))
    assert (plain / scaled).tolist() == pytest.approx([1.0, 4.0], rel=ORACLE_FLOAT64)

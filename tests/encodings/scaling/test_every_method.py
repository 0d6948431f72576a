"""What holds for every method, those to come included."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from posenc_runtime.encodings.scaling import available, from_parameters, method, own, own_rope_types
from posenc_runtime.encodings.spec import RotarySpec
from tests.tolerance import ORACLE_FLOAT64

SPEC = RotarySpec(rotary_dim=64, rope_theta=10000.0, original_max_position_embeddings=2048)


# What a method needs that cannot compute without a checkpoint's own parameters.
COMPLETE = {
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "old_context_len": 512},
    "longrope": {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "factor": 4.0},
}

# Methods for checkpoints that are plain RoPE, which say all of it; others hold parameters of their own.
PLAIN = [rope_type for rope_type in available() if "default" in method(rope_type).own_rope_types]
# Methods that are the same at every scale above 1.
LEVEL = ("clipped", "default", "longrope", "proportional")


@pytest.mark.parametrize("rope_type", PLAIN)
def test_scale_1_is_the_checkpoints_own_rotation(rope_type: str) -> None:
    frequencies = from_parameters(rope_type, {}).frequencies(SPEC, 1.0)
    own = torch.tensor([10000.0 ** (-2 * i / 64) for i in range(32)], dtype=torch.float64)
    torch.testing.assert_close(frequencies.inv_freq, own, rtol=ORACLE_FLOAT64, atol=0)
    assert frequencies.attention_factor == 1.0


@pytest.mark.parametrize("rope_type", sorted(set(PLAIN) - {*LEVEL}))
def test_a_larger_scale_never_turns_a_pair_faster(rope_type: str) -> None:
    scaling = from_parameters(rope_type, {})
    previous = scaling.frequencies(SPEC, 1.0).inv_freq
    for scale in (1.5, 2.0, 4.0, 16.0):
        current = scaling.frequencies(SPEC, scale).inv_freq
        assert (current <= previous * (1 + ORACLE_FLOAT64)).all()
        assert current[-1] < previous[-1]
        previous = current


@pytest.mark.parametrize("rope_type", sorted({*LEVEL} - {"default"}))
def test_what_does_not_depend_on_the_scale_turns_no_pair_faster_above_1(rope_type: str) -> None:
    scaling = from_parameters(rope_type, {"long_factor": [2.0] * 32} if rope_type == "longrope" else {})
    plain, scaled, further = (scaling.frequencies(SPEC, scale).inv_freq for scale in (1.0, 2.0, 8.0))
    assert (scaled <= plain).all() and (scaled < plain).any()
    assert (scaled == further).all()


@pytest.mark.parametrize("rope_type", available())
def test_a_method_is_frozen_and_named_after_its_file(rope_type: str) -> None:
    scaling = from_parameters(rope_type, {})
    assert scaling.rope_type == rope_type
    with pytest.raises(dataclasses.FrozenInstanceError):
        scaling.rope_type = "other"  # type: ignore[misc]


@pytest.mark.parametrize("rope_type", available())
def test_an_unknown_parameter_is_refused(rope_type: str) -> None:
    with pytest.raises(TypeError, match="beta_fats"):
        from_parameters(rope_type, {"beta_fats": 32.0})


@pytest.mark.parametrize("rope_type", available())
def test_a_method_is_for_checkpoints_that_it_or_another_can_read(rope_type: str) -> None:
    for needed in method(rope_type).own_rope_types:
        assert needed in own_rope_types() and own(needed).rope_type == needed
        assert needed in own(needed).own_rope_types


def test_methods_of_which_no_checkpoint_says_anything_read_none() -> None:
    assert own_rope_types() == ("default", "dynamic", "linear", "llama3", "longrope", "yarn")
    with pytest.raises(ValueError, match=r"a checkpoint's rope_type must be one of .*, got 'ntk'"):
        own("ntk")


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"rope_type must be one of base, .*yarn, got 'yarm'"):
        method("yarm")


@pytest.mark.parametrize(
    ("rope_type", "parameters", "rule"),
    [
        ("yarn", {"beta_slow": 0.0}, "beta_slow must be greater than 0, got 0.0"),
        ("yarn", {"beta_fast": 0.5}, "beta_fast must be at least beta_slow 1.0, got 0.5"),
        ("yarn", {"factor": 0.5}, "factor must be at least 1, got 0.5"),
        ("yarn", {"factor": 4.0}, r"factor must come with old_context_len, .* got 4.0: .* in scales, .* 4\]$"),
        ("yarn", {"old_context_len": 0}, "old_context_len must be at least 1, got 0"),
        ("yarn", {"attention_factor": -1.0}, "attention_factor must be greater than 0, got -1.0"),
        ("yarn", {"mscale": 1.0, "mscale_all_dim": -5.0}, "mscale_all_dim must be at least 0, got -5.0"),
        (
            "yarn",
            {"mscale": 1.0},
            "mscale and mscale_all_dim must be given together, .* got mscale 1.0, mscale_all_dim None and",
        ),
        (
            "yarn",
            {"mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": 1.2},
            "without attention_factor, got mscale 1.0, mscale_all_dim 0.5 and attention_factor 1.2",
        ),
        ("mrrope", {"beta_slow": 0.0}, "beta_slow must be greater than 0, got 0.0"),
        ("mrrope", {"beta_fast": 0.5}, "beta_fast must be at least beta_slow 1.0, got 0.5"),
        ("mrrope", {"attention_factor": 0.0}, "attention_factor must be greater than 0, got 0.0"),
        ("clipped", {"clip_low_n": 1}, "clip_low_n must be at least 2, got 1"),
        ("proportional", {"partial_rotary_factor": 0.0}, "must be greater than 0 and at most 1, got 0.0"),
        ("proportional", {"partial_rotary_factor": 1.5}, "must be greater than 0 and at most 1, got 1.5"),
        ("ntk", {"mixed_b": 0.0}, "mixed_b must be greater than 0, got 0.0"),
        ("dynamic", {"factor": 0.5}, "factor must be at least 1, got 0.5"),
        ("dynamic", {"alpha": 0.5}, "alpha must be at least 1, got 0.5"),
        ("linear", {"factor": 0.5}, "factor must be at least 1, got 0.5"),
        ("longrope", {"short_factor": [1.0, 0.0]}, "short_factor must hold numbers greater than 0, got 0.0"),
        ("longrope", {"long_factor": [-1.0]}, "long_factor must hold numbers greater than 0, got -1.0"),
        ("longrope", {"factor": 0.5}, "factor must be at least 1, got 0.5"),
        ("llama3", {"factor": 0.5}, "factor must be at least 1, got 0.5"),
        ("llama3", {"low_freq_factor": 0.0}, "low_freq_factor must be greater than 0, got 0.0"),
        ("llama3", {"old_context_len": 0}, "old_context_len must be greater than 0, got 0"),
        (
            "llama3",
            {"low_freq_factor": 2.0, "high_freq_factor": 1.0},
            "high_freq_factor must be at least low_freq_factor 2.0, got 1.0",
        ),
        ("longrope", {"long_mscale": 0.0}, "long_mscale must be greater than 0, got 0.0"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_rule(rope_type: str, parameters: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        from_parameters(rope_type, parameters)


def test_an_attention_factor_that_is_given_replaces_yarns_own_at_every_scale_above_1() -> None:
    scaling = from_parameters("yarn", {"attention_factor": 1.25})
    assert [scaling.frequencies(SPEC, scale).attention_factor for scale in (1.0, 2.0, 8.0)] == [1.0, 1.25, 1.25]


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"rotary_dim": 63}, "rotary_dim must be even and at least 2, got 63"),
        ({"rotary_dim": 0}, "rotary_dim must be even and at least 2, got 0"),
        ({"rope_theta": 1.0}, "rope_theta must be greater than 1, got 1.0"),
        ({"original_max_position_embeddings": 0}, "original_max_position_embeddings must be at least 1, got 0"),
        ({"num_rotated_pairs": 0}, "num_rotated_pairs must be from 1 to 32, half of rotary_dim, got 0"),
        ({"num_rotated_pairs": 33}, "num_rotated_pairs must be from 1 to 32, half of rotary_dim, got 33"),
    ],
)
def test_a_spec_out_of_range_is_refused_with_the_rule(values: dict[str, float], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(SPEC, **values)


@pytest.mark.parametrize("of_one_pair", [{"rotary_dim": 2}, {"num_rotated_pairs": 1}], ids=["narrow", "proportional"])
def test_ntk_of_a_single_pair_is_refused(of_one_pair: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"2 rotated pairs, .* rotary_dim of at least 4, got 1"):
        from_parameters("ntk", {}).frequencies(dataclasses.replace(SPEC, **of_one_pair), 2.0)


@pytest.mark.parametrize("rope_type", available())
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_pairs_that_the_checkpoint_does_not_rotate_are_rotated_at_no_scale(rope_type: str, scale: float) -> None:
    spec = dataclasses.replace(SPEC, num_rotated_pairs=8)
    inv_freq = from_parameters(rope_type, COMPLETE.get(rope_type, {})).frequencies(spec, scale).inv_freq
    assert spec.num_turning_pairs == 8
    stand_still = {"clipped": 1, "proportional": 2}.get(rope_type, 0) if scale > 1 else 0
    assert (inv_freq[: 8 - stand_still] > 0).all() and (inv_freq[8:] == 0).all()


@pytest.mark.parametrize(
    ("rope_type", "parameters"),
    [("ntk", {}), ("ntk", {"mixed_b": 0.625}), ("dynamic", {}), ("linear", {})],
    ids=["ntk", "ntk-mixed", "dynamic", "linear"],
)
def test_the_slowest_pair_that_turns_is_slowed_by_the_scale(rope_type: str, parameters: dict[str, Any]) -> None:
    spec, scaling = dataclasses.replace(SPEC, num_rotated_pairs=8), from_parameters(rope_type, parameters)
    unscaled, scaled = (scaling.frequencies(spec, scale).inv_freq for scale in (1.0, 4.0))
    assert float(unscaled[7] / scaled[7]) == pytest.approx(4.0, rel=ORACLE_FLOAT64)

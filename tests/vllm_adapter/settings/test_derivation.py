"""What ``auto`` stands for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import MistralConfig

from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.settings.completion import complete
from posenc_runtime.vllm_adapter.settings.derivation import derive
from posenc_runtime.vllm_adapter.settings.section import AttentionSettings, ScalingSettings, SettingRefused


def checkpoint(rope_type: str, trained: int, tuned_length: int | None = None) -> Checkpoint:
    spec = RotarySpec(rotary_dim=32, rope_theta=1e4, original_max_position_embeddings=trained)
    return Checkpoint(
        max_position_embeddings=trained, spec=spec, rope_type=rope_type, architecture="X", tuned_length=tuned_length
    )


def windowed(checkpoint: Checkpoint, window: int = 64) -> Checkpoint:
    """A checkpoint of which each layer has a window."""
    return dataclasses.replace(
        checkpoint, architecture="MistralForCausalLM", text_config=MistralConfig(sliding_window=window)
    )


@pytest.mark.parametrize(
    ("found", "rope_type", "scales", "reason"),
    [
        (
            checkpoint("default", 256),
            "yarn",
            [1, 2, 4],
            "the checkpoint's own rope_type is default, for which it takes yarn, and rerope only by name, because it "
            "was measured with two small models",
        ),
        (checkpoint("llama3", 512), "llama3", [1, 2, 4], "the checkpoint's own rope_type is llama3"),
        (checkpoint("yarn", 512), "yarn", [1, 2, 4], "the checkpoint's own rope_type is yarn"),
        (checkpoint("linear", 512), "linear", [1, 2, 4], "the checkpoint's own rope_type is linear"),
        (checkpoint("dynamic", 512), "dynamic", [1, 2, 4], "the checkpoint's own rope_type is dynamic"),
        (
            checkpoint("longrope", 4096, 131072),
            "longrope",
            [1, 32],
            "the checkpoint's own rope_type is longrope, tuned for 131072 tokens",
        ),
        (
            checkpoint("longrope", 4096, 4000),
            "longrope",
            [1],
            "the checkpoint's own rope_type is longrope, tuned for 4000 tokens",
        ),
    ],
    ids=["unscaled", "llama3", "yarn", "linear", "dynamic", "longrope", "tuned for no more"],
)
def test_method_and_scales_are_what_the_checkpoint_was_made_for(
    found: Checkpoint, rope_type: str, scales: list[float], reason: str
) -> None:
    said = derive(ScalingSettings(rope_type="auto", headroom_tokens=7), found, "model")
    assert (said.scaling.rope_type, said.scaling.scales, said.reason) == (rope_type, scales, reason)
    assert said.scaling.headroom_tokens == 7


def test_scales_and_trained_length_that_are_given_stay() -> None:
    given = ScalingSettings(rope_type="auto", scales=[1, 8], original_max_position_embeddings=128)
    said = derive(given, checkpoint("default", 256), "model").scaling
    assert (said.scales, said.original_max_position_embeddings) == ([1, 8], 128)


@pytest.mark.parametrize(
    ("trained", "longest", "scales"),
    [
        (256, 256, [1]),
        (256, 257, [1, 2]),
        (256, 512, [1, 2]),
        (262144, 1010000, [1, 2, 4]),
        (4096, 100000, [1, 2, 4, 8, 16, 32]),
    ],
)
@pytest.mark.parametrize("settings", [{"rope_type": "auto"}, {"rope_type": "linear", "scales": "auto"}])
def test_scales_double_until_they_reach_the_served_length(
    settings: dict[str, Any], trained: int, longest: int, scales: list[float]
) -> None:
    said = derive(ScalingSettings(**settings), checkpoint("default", trained), "model", longest)
    assert said.scaling.scales == scales
    assert said.scaling.rope_type == {"auto": "yarn"}.get(settings["rope_type"], settings["rope_type"])
    assert said.reason.endswith(f"max_model_len is {longest}, and the trained length {trained}")


def test_scales_of_a_named_method_may_be_left_to_the_checkpoint() -> None:
    said = derive(
        ScalingSettings.model_validate({"rope_type": "linear", "scales": "auto"}), checkpoint("default", 256), "model"
    )
    assert (said.scaling.rope_type, said.scaling.scales) == ("linear", [1, 2, 4])


def test_scales_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"scales must start at 1, got \[\]"):
        ScalingSettings(rope_type="yarn", scales=[])


def test_without_the_checkpoint_there_are_no_scales_to_derive_either() -> None:
    with pytest.raises(SettingRefused, match=r"^scaling\.scales: must be numbers where .* is not read, got auto"):
        derive(ScalingSettings.model_validate({"rope_type": "yarn", "scales": "auto"}), None, "some/model")


def test_without_the_checkpoint_there_is_nothing_to_derive_from() -> None:
    with pytest.raises(SettingRefused, match=r"^scaling\.rope_type: must name a method where .* is not read, got auto"):
        derive(ScalingSettings(rope_type="auto"), None, "some/model")


@pytest.mark.parametrize(
    ("given", "own", "rope_type"),
    [
        ({"rope_type": "auto"}, "default", "default"),
        ({"rope_type": "auto", "scales": "auto"}, "llama3", "llama3"),
        ({"rope_type": "auto", "original_max_position_embeddings": 128}, "default", "default"),
        ({"rope_type": "yarn", "scales": "auto"}, "default", "yarn"),
    ],
)
@pytest.mark.parametrize("longest", [None, 100, 9000])
def test_where_no_rotated_distance_grows_nothing_is_scaled(
    given: dict[str, Any], own: str, rope_type: str, longest: int | None
) -> None:
    said = derive(ScalingSettings.model_validate(given), windowed(checkpoint(own, 256)), "model", longest)
    assert (said.scaling.rope_type, said.scaling.scales) == (rope_type, [1])
    assert said.reason == (
        "no layer that rotates sees more than 64 tokens, however long a request is, so no request needs a scale above 1"
    )


@pytest.mark.parametrize(
    ("given", "found", "scales"),
    [
        ({"scales": [1, 8]}, windowed(checkpoint("default", 256)), [1, 8]),
        ({}, windowed(checkpoint("default", 256), window=257), [1, 2, 4]),
        ({"original_max_position_embeddings": 32}, windowed(checkpoint("default", 256)), [1, 2, 4]),
        ({}, windowed(checkpoint("longrope", 256, 1024)), [1, 4]),
    ],
    ids=["scales are given", "the window is too long", "too long for the length that is given", "longrope"],
)
def test_scales_are_left_out_only_where_nobody_asks_for_them_and_no_distance_is_new(
    given: dict[str, Any], found: Checkpoint, scales: list[float]
) -> None:
    said = derive(ScalingSettings.model_validate({"rope_type": "auto"} | given), found, "model")
    assert said.scaling.scales == scales


@pytest.mark.parametrize(
    "given", [{"rope_type": "auto"}, {"rope_type": "yarn", "scales": "auto"}, {"rope_type": "yarn"}, {}]
)
def test_scale_1_then_reaches_past_the_trained_length_and_elsewhere_it_does_not(given: dict[str, Any]) -> None:
    scaling, attention = ScalingSettings.model_validate(given), AttentionSettings()
    found = complete(scaling, attention, windowed(checkpoint("default", 256)), model="model", max_model_len=1000)
    assert found.deployment.scale_set.lengths == (1000,)
    named = scaling.model_copy(update={"rope_type": "default", "scales": [1.0]})
    for other in (checkpoint("default", 256), windowed(checkpoint("default", 256), window=257)):
        with pytest.raises(SettingRefused, match=r"^scaling\.scales must cover max_model_len 1000"):
            complete(named, attention, other, model="model", max_model_len=1000)


def test_without_a_length_requests_are_as_long_as_the_checkpoint_says() -> None:
    found = complete(
        ScalingSettings(rope_type="auto"), AttentionSettings(), windowed(checkpoint("default", 256)), model="model"
    )
    assert (found.deployment.max_model_len, found.max_model_len) == (256, -1)

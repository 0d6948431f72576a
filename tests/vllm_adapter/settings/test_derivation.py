"""What ``auto`` stands for."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.vllm_adapter.checkpoints.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.settings.derivation import derived
from posenc_runtime.vllm_adapter.settings.section import ScalingSettings, SettingRefused


def checkpoint(rope_type: str, trained: int, tuned_length: int | None = None) -> Checkpoint:
    spec = RotarySpec(rotary_dim=32, rope_theta=1e4, original_max_position_embeddings=trained)
    return Checkpoint(
        max_position_embeddings=trained, spec=spec, rope_type=rope_type, architecture="X", tuned_length=tuned_length
    )


@pytest.mark.parametrize(
    ("found", "rope_type", "scales", "reason"),
    [
        (checkpoint("default", 256), "yarn", [1, 2, 4], "the checkpoint's own rotation is not scaled"),
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
    said = derived(ScalingSettings(rope_type="auto", headroom_tokens=7), found, "model")
    assert (said.scaling.rope_type, said.scaling.scales, said.reason) == (rope_type, scales, reason)
    assert said.scaling.headroom_tokens == 7


def test_scales_and_trained_length_that_are_given_stay() -> None:
    given = ScalingSettings(rope_type="auto", scales=[1, 8], original_max_position_embeddings=128)
    said = derived(given, checkpoint("default", 256), "model").scaling
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
    said = derived(ScalingSettings(**settings), checkpoint("default", trained), "model", longest)
    assert said.scaling.scales == scales
    assert said.scaling.rope_type == {"auto": "yarn"}.get(settings["rope_type"], settings["rope_type"])
    assert said.reason.endswith(f"max_model_len is {longest}, and the trained length {trained}")


def test_scales_of_a_named_method_may_be_left_to_the_checkpoint() -> None:
    said = derived(
        ScalingSettings.model_validate({"rope_type": "linear", "scales": "auto"}), checkpoint("default", 256), "model"
    )
    assert (said.scaling.rope_type, said.scaling.scales) == ("linear", [1, 2, 4])


def test_scales_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"scales must start at 1, got \[\]"):
        ScalingSettings(rope_type="yarn", scales=[])


def test_without_the_checkpoint_there_are_no_scales_to_derive_either() -> None:
    with pytest.raises(SettingRefused, match=r"^scaling\.scales: must be numbers where .* is not read, got auto"):
        derived(ScalingSettings.model_validate({"rope_type": "yarn", "scales": "auto"}), None, "some/model")


def test_without_the_checkpoint_there_is_nothing_to_derive_from() -> None:
    with pytest.raises(SettingRefused, match=r"^scaling\.rope_type: must name a method where .* is not read, got auto"):
        derived(ScalingSettings(rope_type="auto"), None, "some/model")

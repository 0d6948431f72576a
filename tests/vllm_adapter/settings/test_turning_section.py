"""The section ``scaling`` of a deployment whose queries turn."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pydantic import ValidationError

from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.settings.completion import FIT_INTO_MEMORY, complete
from posenc_runtime.vllm_adapter.settings.section import AttentionSettings, ScalingSettings, SettingRefused

CHECKPOINT = Checkpoint(
    max_position_embeddings=256,
    spec=RotarySpec(rotary_dim=32, rope_theta=1e4, original_max_position_embeddings=256),
    rope_type="default",
    architecture="LlamaForCausalLM",
)


def section(rope_type: str = "rerope", **said: Any) -> ScalingSettings:
    return ScalingSettings.model_validate({"rope_type": rope_type, **said})


@pytest.mark.parametrize("rope_type", ["rerope", "dual_chunk"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scales", [1, 2]),
        ("scales", [1]),
        ("headroom_tokens", 256),
        ("on_crossing", "pin"),
        ("on_crossing", "rerotate"),
        ("rerotate_budget_tokens", 64),
        ("prefix_reuse", "exact"),
        ("rope_theta", 2e4),
        ("allow_beyond_trained", True),
    ],
)
def test_settings_of_scales_must_be_left_out_even_at_their_defaults(rope_type: str, name: str, value: Any) -> None:
    rule = rf"{name} must be left out where rope_type is {rope_type}, got .*: this method turns queries"
    with pytest.raises(ValidationError, match=rule):
        section(rope_type, **{name: value})


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ({"window": 80, "page": 32}, "window must be a multiple of the page of 32 tokens, got 80: take 64 or 96"),
        ({"window": 32, "page": 64}, "page must be at most the window of 32 tokens, .* got 64: take a smaller page"),
        ({"window": 1.5}, r"window\s+Input should be a valid integer"),
        ({"window": 0}, "window must be at least 1 token, got 0"),
        ({"chunk_size": 64}, "chunk_size"),
        ({"leak": False}, r"leak\s+Input should be a finite number or none"),
        ({"leak": 0.5}, "leak must be none or at least 1, .* got 0.5: give a larger"),
    ],
    ids=[
        "window between pages",
        "page above window",
        "no whole number",
        "no window",
        "of another method",
        "leak of no kind",
        "leak",
    ],
)
def test_parameters_that_do_not_fit_each_other_are_refused(said: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        section(**said)


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ({"window": 512}, "window and page must together be at most .* 256 tokens, .* got 512 and 32: take a window"),
        ({"window": 40}, "window must be a multiple of the page of 32 tokens, got 40: take 32 or 64"),
        ({"page": 160}, "page must be at most|window and page must together"),
    ],
    ids=["window above trained", "no multiple of the default page", "page above half"],
)
def test_parameters_that_do_not_fit_the_checkpoint_are_refused_by_their_section(
    said: dict[str, Any], rule: str
) -> None:
    with pytest.raises(SettingRefused, match=rf"^scaling[.:].*({rule})"):
        complete(section(**said), AttentionSettings(), CHECKPOINT, model="some/model", max_model_len=4096)


def test_it_becomes_a_deployment_of_one_scale_past_the_trained_length() -> None:
    deployment = complete(
        section(window=64, page=32), AttentionSettings(), CHECKPOINT, model="some/model", max_model_len=4096
    ).deployment
    assert deployment.turns_queries and dict(deployment.parameters) == {"window": 64, "page": 32}
    assert (deployment.scales, deployment.max_model_len) == ((1.0,), 4096)
    assert dataclasses.replace(deployment, parameters={}).fingerprint != deployment.fingerprint


@pytest.mark.parametrize(("said", "served"), [(None, FIT_INTO_MEMORY), (4096, 4096)], ids=["not said", "said"])
def test_requests_may_be_as_long_as_memory_allows_up_to_32_trained_lengths(said: int | None, served: int) -> None:
    completed = complete(section(), AttentionSettings(), CHECKPOINT, model="some/model", max_model_len=said)
    assert completed.max_model_len == served
    assert completed.deployment.max_model_len == (said or 32 * 256)


@pytest.mark.parametrize(("trained", "longest"), [(32_768, 2**20), (131_072, 2**20), (2**21, 2**21)])
def test_requests_that_nobody_limits_end_at_a_million_tokens(trained: int, longest: int) -> None:
    checkpoint = dataclasses.replace(CHECKPOINT, max_position_embeddings=trained)
    completed = complete(section(), AttentionSettings(), checkpoint, model="some/model")
    assert completed.deployment.max_model_len == longest

"""What scaling cannot be combined with is refused by name."""

from __future__ import annotations

import types
from typing import Any

import pytest

from posenc_runtime.vllm_adapter.support import Unsupported, refuse_checkpoint

LLAMA = {"rope_type": "default", "rope_theta": 10000.0}


def config(rope_parameters: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(rope_parameters=rope_parameters)


@pytest.mark.parametrize(
    "architecture",
    [
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Phi3ForCausalLM",
        "GPTJForCausalLM",
        "Glm4ForCausalLM",
    ],
)
def test_architectures_that_rotate_through_the_rotary_embedding_are_served(architecture: str) -> None:
    refuse_checkpoint(config(LLAMA), [architecture])


@pytest.mark.parametrize(
    ("architecture", "reader"),
    [
        ("Qwen3NextForCausalLM", "qwen3_next"),
        ("HYV3ForCausalLM", "hy_v3"),
        ("DeepseekV2ForCausalLM", "deepseek_v2"),
        ("DeepseekV3ForCausalLM", "deepseek_v2"),
    ],
)
def test_architectures_that_read_the_table_themselves_are_refused_by_name(architecture: str, reader: str) -> None:
    with pytest.raises(Unsupported, match=rf"does not serve {architecture}: .*{reader} of vLLM reads the table"):
        refuse_checkpoint(config(LLAMA), [architecture])


@pytest.mark.parametrize(
    "architecture", ["GlmForCausalLM", "GPTNeoXForCausalLM", "Olmo2ForCausalLM", "NobodyHeardOfForCausalLM"]
)
def test_architectures_that_only_the_transformers_backend_runs_are_refused_by_name(architecture: str) -> None:
    with pytest.raises(Unsupported, match=f"does not serve {architecture}: vLLM has no model of its own for it"):
        refuse_checkpoint(config(LLAMA), [architecture])


@pytest.mark.parametrize(
    ("rope_parameters", "rule"),
    [
        ({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}, "whose own rope_type is default, got llama3"),
        ({"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}, "whose own rope_type is default, got yarn"),
        ({"rope_type": "longrope", "rope_theta": 1e4}, "whose own rope_type is default, got longrope"),
        (LLAMA | {"mrope_section": [16, 24, 24]}, "rope_parameters with mrope_section"),
        (LLAMA | {"use_fope": True}, "rope_parameters with use_fope"),
        (
            {"full_attention": LLAMA, "sliding_attention": LLAMA},
            "one rotary embedding, got one for each of full_attention, sliding_attention",
        ),
        (None, "scaling needs a model with rotary embeddings, but the configuration of BloomForCausalLM"),
    ],
)
def test_checkpoints_that_cannot_be_scaled_are_refused_with_the_reason(rope_parameters: Any, rule: str) -> None:
    with pytest.raises(Unsupported, match=rule):
        refuse_checkpoint(config(rope_parameters), ["BloomForCausalLM"])

"""What vLLM's own sources say of a model: the few that are refused by name, and nothing else of all that vLLM has."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from transformers import AutoConfig, LlamaConfig, MiniCPM3Config, PreTrainedConfig, Qwen2Config
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from vllm.model_executor.models.registry import _TEXT_GENERATION_MODELS
from vllm.transformers_utils.config import patch_rope_parameters

from posenc_runtime.vllm_adapter.checkpoint.model_code.decoders import may_rotate
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_rules import (
    caches_latents,
    other_bases,
    reason_against_scaling,
)
from posenc_runtime.vllm_adapter.checkpoint.scalable_checkpoints import refuse_checkpoint
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from tests.model_configs import DUAL_CHUNKS, GPT_OSS, LAGUNA, MIMO_V2, PLAMO_3, SARVAM_MLA
from tests.vllm_adapter.checkpoint.model_code.known import LATENT, SCALED, UNROTATED


def read(said: dict[str, Any]) -> Any:
    """What a checkpoint's config.json says, as vLLM reads it where transformers does not know the model."""
    config = PreTrainedConfig(**said)
    patch_rope_parameters(config)
    return config


@functools.cache
def usual(architecture: str) -> Any:
    """A configuration as transformers has it for an architecture, Llama's where it has none that rotates."""
    for model_type, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        if architecture in (names if isinstance(names, tuple) else (names,)):
            config = AutoConfig.for_model(model_type)
            if getattr(config, "rope_parameters", None):
                return config
    return LlamaConfig()


@pytest.mark.parametrize("architecture", sorted((SCALED | LATENT) & _TEXT_GENERATION_MODELS.keys()))
def test_a_model_that_is_served_is_not_refused(architecture: str) -> None:
    assert reason_against_scaling(usual(architecture), architecture) is None
    config = LlamaConfig(kv_lora_rank=512) if architecture in LATENT else usual(architecture)
    assert caches_latents(config, architecture) is (architecture in LATENT)


@pytest.mark.slow
def test_of_every_model_of_vllm_somebody_has_said_whether_it_is_served() -> None:
    without_a_reason = {
        architecture
        for architecture in _TEXT_GENERATION_MODELS
        if reason_against_scaling(LlamaConfig(), architecture) is None
    }
    assert without_a_reason == (SCALED | LATENT | UNROTATED) & _TEXT_GENERATION_MODELS.keys()


def test_models_without_rotary_embeddings_are_told_from_the_others_by_their_source() -> None:
    rotating = {architecture for architecture in _TEXT_GENERATION_MODELS if may_rotate(architecture)}
    assert not rotating & UNROTATED
    assert (SCALED | LATENT) & _TEXT_GENERATION_MODELS.keys() <= rotating


@pytest.mark.parametrize("said", [PLAMO_3, MIMO_V2, LAGUNA], ids=lambda said: said["model_type"])
def test_layers_that_rotate_each_in_its_own_way_are_served(said: dict[str, Any]) -> None:
    refuse_checkpoint(read(said), said["architectures"])


def test_a_model_that_rotates_otherwise_than_its_configuration_says_is_refused() -> None:
    plain = read({key: value for key, value in GPT_OSS.items() if key != "rope_scaling"})
    with pytest.raises(Unsupported, match=r"^posenc does not serve GptOssForCausalLM with rope_type default: its m"):
        refuse_checkpoint(plain, ["GptOssForCausalLM"])


@pytest.mark.parametrize(
    ("said", "other"),
    [
        pytest.param(PLAMO_3, "rope_theta 1000000 and rope_local_theta 10000", id="plamo-3"),
        pytest.param(MIMO_V2, "rope_theta 5000000 and swa_rope_theta 10000", id="mimo-v2"),
        pytest.param(LAGUNA, "rope_theta 500000.0 and swa_rope_parameters {'rope_type'", id="laguna"),
    ],
)
def test_the_key_of_another_base_is_found_with_its_value(said: dict[str, Any], other: str) -> None:
    [architecture] = said["architectures"]
    assert str(other_bases(read(said), architecture)).startswith(other)


def granite(*bases: float) -> Any:
    return read({"rope_theta": 10000.0, "layer_types": ["full_attention"] * len(bases), "layer_rope_theta": [*bases]})


def test_zeros_among_the_bases_of_layers_mean_no_rotation() -> None:
    assert other_bases(granite(1e4, 0, 1e4), "GraniteForCausalLM") is None
    assert other_bases(granite(1e4, 0, 5e5), "GraniteForCausalLM") == "layer_rope_theta [10000.0, 0, 500000.0]"


@pytest.mark.parametrize(
    ("said", "architecture"),
    [
        pytest.param({"swa_rope_theta": 10000}, "LlamaForCausalLM", id="a key that the model does not read"),
        pytest.param({"swa_rope_theta": -1.0}, "MiMoV2ForCausalLM", id="a value that says there is none"),
        pytest.param({"swa_rope_theta": 1000000}, "MiMoV2ForCausalLM", id="the same"),
        pytest.param(
            {"rope_local_theta": 10000, "layer_types": ["full_attention"] * 24},
            "Plamo3ForCausalLM",
            id="a base of layers that there are none of",
        ),
    ],
)
def test_a_base_that_no_layer_has_is_not_another_one(said: dict[str, Any], architecture: str) -> None:
    assert other_bases(read({"rope_theta": 1000000} | said), architecture) is None


def test_latents_are_found_where_vllm_does_not_know_the_type_of_the_model() -> None:
    assert caches_latents(read(SARVAM_MLA), "SarvamMLAForCausalLM")
    assert not caches_latents(read(SARVAM_MLA | {"kv_lora_rank": None}), "SarvamMLAForCausalLM")
    # Expands its latents to keys before it caches them.
    assert not caches_latents(MiniCPM3Config(), "MiniCPM3ForCausalLM")


def test_queries_that_are_rotated_by_positions_within_chunks_are_refused() -> None:
    chunks = Qwen2Config(dual_chunk_attention_config=DUAL_CHUNKS)
    with pytest.raises(Unsupported, match=r"does not scale checkpoints with dual_chunk_attention_config, got \{'chunk"):
        refuse_checkpoint(chunks, ["Qwen2ForCausalLM"])
    refuse_checkpoint(Qwen2Config(dual_chunk_attention_config=None), ["Qwen2ForCausalLM"])

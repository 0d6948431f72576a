"""What vLLM's own sources say of a model is refused by name, and nothing else of all that vLLM has."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from transformers import AutoConfig, LlamaConfig, MiniCPM3Config, PreTrainedConfig, Qwen2Config
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from vllm.model_executor.models.registry import _TEXT_GENERATION_MODELS
from vllm.transformers_utils.config import patch_rope_parameters

from posenc_runtime.vllm_adapter.errors import Unsupported
from posenc_runtime.vllm_adapter.model_code.model_rules import (
    caches_latents,
    reason_against_scaling,
    reason_against_turning,
)
from posenc_runtime.vllm_adapter.refusals.checkpoint import refuse_checkpoint
from tests.model_configs import DUAL_CHUNKS, GPT_OSS, LAGUNA, MIMO_V2, PLAMO_3, SARVAM_MLA

ROTATED = {
    *("ApertusForCausalLM", "ArceeForCausalLM", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),
    *("ChatGLMForConditionalGeneration", "ChatGLMModel", "CwmForCausalLM", "DbrxForCausalLM", "DeciLMForCausalLM"),
    *("Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM", "ExaoneForCausalLM", "GPTJForCausalLM", "GPTNeoXForCausalLM"),
    *("Gemma2ForCausalLM", "GemmaForCausalLM", "Glm4ForCausalLM", "Glm4MoeForCausalLM", "GlmForCausalLM"),
    *("HyperCLOVAXForCausalLM", "IQuestCoderForCausalLM", "InternLM2ForCausalLM", "InternLM3ForCausalLM"),
    *("Jais2ForCausalLM", "LLaMAForCausalLM", "LlamaForCausalLM", "MellumForCausalLM", "MiMoForCausalLM"),
    *("MiniCPMForCausalLM", "MiniMaxM2ForCausalLM", "Ministral3ForCausalLM", "MistralForCausalLM"),
    *("MixtralForCausalLM", "NemotronForCausalLM", "OlmoeForCausalLM", "OrionForCausalLM", "PanguEmbeddedForCausalLM"),
    *("Param2MoEForCausalLM", "Phi3ForCausalLM", "PhiForCausalLM", "PhiMoEForCausalLM", "Qwen2ForCausalLM"),
    *("Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Rnj1ForCausalLM", "SarvamMoEForCausalLM"),
    *("SeedOssForCausalLM", "SolarForCausalLM", "StableLmForCausalLM", "Step3TextForCausalLM"),
    *("TeleChat2ForCausalLM", "TeleChat3ForCausalLM", "TeleFLMForCausalLM"),
}
ROTATED_IN_SOME_LAYERS = {
    *("AfmoeForCausalLM", "Cohere2ForCausalLM", "Cohere2MoeForCausalLM", "CohereForCausalLM", "Exaone4ForCausalLM"),
    *("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM", "FalconForCausalLM", "GraniteForCausalLM"),
    *("GraniteMoeForCausalLM", "GraniteMoeSWAForCausalLM", "GraniteMoeSharedForCausalLM", "GraniteSWAForCausalLM"),
    *("IQuestLoopCoderForCausalLM", "K2HorizonForCausalLM", "Llama4ForCausalLM", "MuseGlimmerForCausalLM"),
    "Step3p5ForCausalLM",
}
# Recurrent layers, a rotary embedding or a base for each type of layer, latents, ALiBi, or learned positions.
REFUSED_BY_WHAT_THEIR_CONFIGURATION_SAYS = {
    *("BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM", "BloomForCausalLM", "DomynEdgeForCausalLM"),
    *("DoryForCausalLM", "FalconH1ForCausalLM", "FalconMambaForCausalLM", "GPT2LMHeadModel", "Gemma3ForCausalLM"),
    *("Gemma3nForCausalLM", "Gemma4ForCausalLM", "GraniteMoeHybridForCausalLM", "HrmTextForCausalLM"),
    *("InklingForCausalLM", "InklingForConditionalGeneration", "JambaForCausalLM", "LagunaForCausalLM"),
    *("Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "MiMoV2FlashForCausalLM"),
    *("MiMoV2ForCausalLM", "MiniCPM3ForCausalLM", "NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"),
    *("OPTForCausalLM", "OlmoHybridForCausalLM", "PanguProMoEV2ForCausalLM", "PanguUltraMoEForCausalLM"),
    *("Plamo3ForCausalLM", "SarvamMLAForCausalLM", "Step1ForCausalLM", "Zamba2ForCausalLM"),
}


def read(said: dict[str, Any]) -> Any:
    """What a checkpoint's config.json says, as vLLM reads it where transformers does not know the model."""
    config = PreTrainedConfig(**said)
    patch_rope_parameters(config)
    return config


@functools.cache
def usual(architecture: str) -> Any:
    """A configuration as transformers has it for an architecture, Llama's where it has none with one rotation."""
    for model_type, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        if architecture in (names if isinstance(names, tuple) else (names,)):
            config = AutoConfig.for_model(model_type)
            if "rope_type" in (getattr(config, "rope_parameters", None) or {}):
                return config
    return LlamaConfig()


@pytest.mark.parametrize("architecture", sorted((ROTATED | ROTATED_IN_SOME_LAYERS) & _TEXT_GENERATION_MODELS.keys()))
def test_a_model_that_is_served_is_not_refused(architecture: str) -> None:
    assert reason_against_scaling(usual(architecture), architecture) is None
    assert not caches_latents(usual(architecture), architecture)
    reason = reason_against_turning(usual(architecture), architecture)
    if architecture in ROTATED:
        assert reason is None
    else:
        assert reason is not None and reason.startswith("a model that rotates the keys of every layer, but ")


def test_of_every_model_of_vllm_somebody_has_said_whether_it_is_served() -> None:
    without_a_reason = {
        architecture
        for architecture in _TEXT_GENERATION_MODELS
        if reason_against_scaling(LlamaConfig(), architecture) is None
    }
    known = ROTATED | ROTATED_IN_SOME_LAYERS | REFUSED_BY_WHAT_THEIR_CONFIGURATION_SAYS
    assert without_a_reason == known & _TEXT_GENERATION_MODELS.keys()


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        pytest.param(PLAMO_3, "with rope_theta 1000000 and rope_local_theta 10000: all layers must", id="plamo-3"),
        pytest.param(MIMO_V2, "with rope_theta 5000000 and swa_rope_theta 10000: all layers must", id="mimo-v2"),
        pytest.param(LAGUNA, r"with rope_theta 500000\.0 and swa_rope_parameters \{'rope_type'.*: all l", id="laguna"),
        pytest.param(GPT_OSS, "with rope_type default: its model in vLLM rotates by yarn, whatever", id="gpt-oss"),
    ],
)
def test_layers_that_do_not_rotate_as_one_configuration_says_are_refused(said: dict[str, Any], rule: str) -> None:
    [architecture] = said["architectures"]
    with pytest.raises(Unsupported, match=f"^posenc does not serve {architecture} {rule}"):
        refuse_checkpoint(read(said), [architecture])


def granite(*bases: float) -> Any:
    return read({"rope_theta": 10000.0, "layer_types": ["full_attention"] * len(bases), "layer_rope_theta": [*bases]})


def test_the_bases_of_all_layers_that_rotate_must_be_one_and_zeros_mean_no_rotation() -> None:
    assert reason_against_scaling(granite(1e4, 0, 1e4), "GraniteForCausalLM") is None
    reason = reason_against_scaling(granite(1e4, 0, 5e5), "GraniteForCausalLM")
    assert reason is not None and "with layer_rope_theta [10000.0, 0, 500000.0]: all layers must" in reason


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
def test_a_base_that_no_layer_has_is_no_reason(said: dict[str, Any], architecture: str) -> None:
    assert reason_against_scaling(read({"rope_theta": 1000000} | said), architecture) is None


def test_heads_of_which_the_end_is_rotated_are_not_turned() -> None:
    reason = reason_against_turning(MiniCPM3Config(), "MiniCPM3ForCausalLM")
    assert reason is not None and "does not rotate the first 64 (qk_nope_head_dim)" in reason
    # Others may have such keys left over from the model that they were made of.
    assert reason_against_turning(LlamaConfig(qk_nope_head_dim=64), "LlamaForCausalLM") is None


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

"""How requests may cross, by the sources, against lists that were written by hand."""

from __future__ import annotations

import ast

import pytest
from transformers import LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from vllm.model_executor.models.registry import (
    _MULTIMODAL_MODELS,
    _TEXT_GENERATION_MODELS,
    _TRANSFORMERS_SUPPORTED_MODELS,
)

from posenc_runtime.vllm_adapter.checkpoint.model_code import later_changes
from posenc_runtime.vllm_adapter.checkpoint.model_code.architecture_tables import USUAL_LANGUAGE_MODELS
from posenc_runtime.vllm_adapter.checkpoint.model_code.verdicts import verdict
from tests.vllm_adapter.checkpoint.model_code import known

# Of those in USUAL_LANGUAGE_MODELS that transformers has a configuration of, its model_type.
TYPES = {
    "Blip2ForConditionalGeneration": "blip-2",
    "Cohere2VisionForConditionalGeneration": "cohere2_vision",
    "GraniteSpeechForConditionalGeneration": "granite_speech",
    "GraniteSpeechPlusForConditionalGeneration": "granite_speech_plus",
    "InternVLForConditionalGeneration": "internvl",
    "Lfm2VlForConditionalGeneration": "lfm2_vl",
    "LightOnOCRForConditionalGeneration": "lighton_ocr",
    "LlavaForConditionalGeneration": "llava",
    "LlavaNextForConditionalGeneration": "llava_next",
    "LlavaNextVideoForConditionalGeneration": "llava_next_video",
    "LlavaOnevisionForConditionalGeneration": "llava_onevision",
    "Mistral3ForConditionalGeneration": "mistral3",
    "PaliGemmaForConditionalGeneration": "paligemma",
    "VibeVoiceAsrForConditionalGeneration": "vibevoice_asr",
    "VoxtralForConditionalGeneration": "voxtral",
}


def said(architecture: str) -> str:
    return verdict(architecture, usual=USUAL_LANGUAGE_MODELS.get(architecture)).kind


def by_hand(architecture: str) -> str:
    """What the lists say of an architecture; an error if they do not name it in exactly one place."""
    lists = {
        "refused": known.READING | known.SEEING_REFUSED | known.TRANSFORMERS_REFUSED,
        "pin": known.PINNED,
        "recompute, pin": known.RECOMPUTED | known.TRANSFORMERS_RECOMPUTED,
        "without scaling": known.UNROTATED | known.TRANSFORMERS_UNROTATED,
        "at load": known.NAMED_BY_CHECKPOINT | known.TRANSFORMERS_UNKNOWN,
        "rerotate": ((known.SCALED | known.LATENT | known.FIXED) - known.RECOMPUTED - known.PINNED)
        | known.OWN_DECODER
        | known.TRANSFORMERS,
    }
    if architecture in known.RUNS:
        return by_hand(known.RUNS[architecture])
    [kind] = (kind for kind, names in lists.items() if architecture in names)
    return kind


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("registry", [_TEXT_GENERATION_MODELS, _MULTIMODAL_MODELS, _TRANSFORMERS_SUPPORTED_MODELS])
def test_what_sources_say_of_every_architecture_is_what_was_written_by_hand(registry: dict[str, object]) -> None:
    assert {each: said(each) for each in registry} == {each: by_hand(each) for each in registry}


@pytest.mark.parametrize("architecture", sorted(TYPES))
def test_a_usual_language_model_is_the_default_of_transformers(architecture: str) -> None:
    default = CONFIG_MAPPING[TYPES[architecture]]().get_text_config().model_type
    assert USUAL_LANGUAGE_MODELS[architecture] == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[default]


def test_a_key_of_the_checkpoint_decides_where_the_table_says_so() -> None:
    sparse = LlamaConfig(index_topk=2048)
    assert verdict("DeepseekV3ForCausalLM", sparse).kind == "refused"
    assert verdict("KimiK25ForConditionalGeneration", sparse).kind == "refused"
    assert verdict("DeepseekV3ForCausalLM", LlamaConfig()).kind == "rerotate"


def test_a_checkpoint_names_its_language_model() -> None:
    named = LlamaConfig(architectures=["NemotronHForCausalLM"])
    assert verdict("InternVLChatModel", named).kind == "without scaling"
    assert verdict("InternVLChatModel", LlamaConfig()).kind == "rerotate"
    assert verdict("InternVLChatModel").kind == "at load"


@pytest.mark.parametrize(
    "rotates",
    ["q, k = self.rotary_emb(positions, q, k)", "if self.window:\n            q, k = self.rotary_emb(positions, q, k)"],
    ids=["in every layer", "under a condition"],
)
@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ("k = justnorm(k).view(t, self.kv_size)", True),
        ("k = k.view(t, self.num_kv_heads, self.head_dim)", False),
        ("k = self.k_norm(k)", True),
    ],
    ids=["a function", "a view", "a norm with weights"],
)
def test_a_function_that_changes_keys_after_their_rotation_is_seen(change: str, is_found: bool, rotates: str) -> None:
    """As the attention of Dory, new in vLLM 0.33, has it."""
    layer = f"class Attention:\n    def forward(self):\n        {rotates}\n        {change}"
    (code,) = ast.parse(layer).body
    assert [ast.unparse(each) for each in later_changes._changes(code)] == ([change] if is_found else [])


def test_a_change_is_seen_in_the_branch_of_the_rotation_and_in_no_other() -> None:
    layer = """
class Attention:
    def forward(self):
        if self.window:
            q, k = self.rotary_emb(positions, q, k)
            k = justnorm(k)
        if self.norms:
            k = self.k_norm(k)
"""
    (code,) = ast.parse(layer).body
    assert [ast.unparse(each) for each in later_changes._changes(code)] == ["k = justnorm(k)"]

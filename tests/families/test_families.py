"""Every family is what it is an example of, as vLLM reads its configuration."""

from __future__ import annotations

import collections
import functools
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from tests import families
from tests.families.family import FULL, ORIGINAL, OWN_FACTOR, SLIDING

Text = Any  # a configuration of the text of a model
Read = Callable[[str], tuple[Any, Text]]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """The configuration of a family, and that of its text, as vLLM reads them."""
    from vllm.transformers_utils.config import get_config, get_hf_text_config

    folder = tmp_path_factory.mktemp("families")

    @functools.cache
    def of(name: str) -> tuple[Any, Text]:
        trusted = families.FAMILIES[name].engine.get("trust_remote_code", False)
        config = get_config(str(families.make(name, folder / name)), trust_remote_code=trusted)
        return config, get_hf_text_config(config)

    return of


def windows_beside_full(text: Text) -> bool:
    return {SLIDING, FULL} == set(text.layer_types)


def a_rotation_for_each_type(text: Text) -> bool:
    rotations = text.rope_parameters
    return windows_beside_full(text) and rotations[FULL]["rope_theta"] != rotations[SLIDING]["rope_theta"]


def plain(text: Text) -> bool:
    return bool(text.rope_parameters["rope_type"] == "default")


def yarn(text: Text) -> bool:
    return bool(text.rope_parameters["rope_type"] == "yarn")


def states_beside(kind: str) -> Callable[[Text], bool]:
    return lambda text: {kind, FULL} <= set(text.layer_types)


def latent(text: Text) -> bool:
    return bool(text.kv_lora_rank + text.qk_rope_head_dim == 512 + 64)


def dynamic(text: Text) -> bool:
    return bool(text.rope_parameters["rope_type"] == "dynamic")


def chunks_with_llama3(text: Text) -> bool:
    return (
        set(text.no_rope_layers) == {0, 1}
        and text.rope_parameters["rope_type"] == "llama3"
        and text.rope_parameters["low_freq_factor"] == text.rope_parameters["high_freq_factor"]
    )


IS_ONE: dict[str, Callable[[Text], bool]] = {
    "gemma3": a_rotation_for_each_type,
    "gemma3n": lambda text: a_rotation_for_each_type(text) and text.num_kv_shared_layers == 2,
    "gemma4": lambda text: a_rotation_for_each_type(text) and text.rope_parameters[FULL]["rope_type"] == "proportional",
    "laguna": lambda text: (
        a_rotation_for_each_type(text)
        and text.rope_parameters[FULL]["rope_type"] == "yarn"
        and text.rope_parameters[FULL]["partial_rotary_factor"] == 0.5
        and len(set(text.num_attention_heads_per_layer)) == 2
    ),
    "mimo_v2": lambda text: (
        a_rotation_for_each_type(text) and text.swa_rope_theta != text.rope_theta and text.add_swa_attention_sink_bias
    ),
    "olmo3": lambda text: (
        windows_beside_full(text)
        and [text.rope_parameters[kind]["rope_type"] for kind in (FULL, SLIDING)] == ["yarn", "default"]
    ),
    "cohere2": windows_beside_full,
    "exaone4": windows_beside_full,
    "llama4": chunks_with_llama3,
    "smollm3": lambda text: set(text.no_rope_layers) == {0, 1},
    "gemma2": lambda text: windows_beside_full(text) and text.attn_logit_softcapping > 0,
    "gpt_oss": lambda text: windows_beside_full(text) and yarn(text) and text.rope_parameters["truncate"] is False,
    "mistral_0.1": lambda text: getattr(text, "layer_types", None) is None and text.sliding_window > 0,
    "qwen3_next": lambda text: (
        states_beside("linear_attention")(text) and text.rope_parameters["partial_rotary_factor"] == 0.25
    ),
    "qwen3_5": lambda text: (
        states_beside("linear_attention")(text)
        and text.rope_parameters["mrope_interleaved"]
        and 2 * sum(text.rope_parameters["mrope_section"]) == 0.25 * text.head_dim
    ),
    "lfm2": states_beside("conv"),
    "falcon_h1": lambda text: set(text.layers_block_type) == {"hybrid"},
    "nemotron_h": lambda text: (
        states_beside("linear_attention")(text) and getattr(text, "rope_parameters", None) is None
    ),
    "deepseek_v2": lambda text: latent(text) and yarn(text) and text.q_lora_rank is None,
    "deepseek_v3": lambda text: latent(text) and yarn(text) and text.rope_parameters["mscale_all_dim"] == 1.0,
    "deepseek_v3_plain": lambda text: latent(text) and plain(text),
    "deepseek_v3_bfloat16": lambda text: (
        latent(text) and yarn(text) and text.num_experts_per_tok == text.n_routed_experts
    ),
    "minicpm3": lambda text: text.qk_nope_head_dim > 0 and text.qk_rope_head_dim > 0,
    "ministral3": lambda text: yarn(text) and text.rope_parameters["llama_4_scaling_beta"] > 0,
    "qwen3_yarn": yarn,
    "llama_linear": lambda text: text.rope_parameters["rope_type"] == "linear",
    "llama_dynamic": dynamic,
    "internlm2": dynamic,
    "hunyuan": lambda text: dynamic(text) and text.rope_parameters["alpha"] > 1,
    "granite": lambda text: text.attention_multiplier != (text.hidden_size // text.num_attention_heads) ** -0.5,
    "olmo2": plain,
    "gpt_neox": lambda text: text.rope_parameters["partial_rotary_factor"] == 0.25,
    "qwen2_5_vl": lambda text: (
        len(text.rope_parameters["mrope_section"]) == 3 and not text.rope_parameters.get("mrope_interleaved")
    ),
    "gemma3_sees": lambda text: a_rotation_for_each_type(text) and text.rope_parameters[FULL]["rope_type"] == "linear",
    "llava": plain,
    "qwen3_vl": lambda text: text.rope_parameters["mrope_interleaved"],
    "glm4v": lambda text: (
        len(text.rope_parameters["mrope_section"]) == 3 and text.rope_parameters["partial_rotary_factor"] == 0.5
    ),
    "internvl": dynamic,
    "llama4_sees": chunks_with_llama3,
    "plamo3": lambda text: windows_beside_full(text) and text.rope_local_theta != text.rope_parameters["rope_theta"],
    "step3_5": lambda text: (
        windows_beside_full(text) and len(set(text.rope_theta)) == 2 and text.yarn_only_types == [FULL]
    ),
}


@pytest.mark.parametrize("name", families.FAMILIES)
def test_vllm_reads_what_a_family_is_an_example_of(name: str, read: Read) -> None:
    text = read(name)[1]
    assert IS_ONE[name](text), text


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_family_says_what_its_configuration_says(name: str, read: Read) -> None:
    family = families.FAMILIES[name]
    config, text = read(name)
    assert config.architectures == [family.architecture]
    assert str(config.dtype) == f"torch.{family.dtype}"
    assert text.max_position_embeddings == family.trained
    for kind, count in collections.Counter(getattr(text, "layer_types", None) or []).items():
        assert count >= 2, kind


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_family_with_windows_says_how_wide_they_are(name: str, read: Read) -> None:
    family = families.FAMILIES[name]
    text = read(name)[1]
    of_text = getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None)
    if name == "cohere2":  # before a token, and vLLM counts the token, too
        of_text += 1
    if name == "plamo3":
        of_text = text.interleaved_sliding_window[0]
    assert family.window == of_text


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_rotation_that_is_scaled_already_reaches_the_trained_length(name: str, read: Read) -> None:
    text = read(name)[1]
    rotations = getattr(text, "rope_parameters", None) or {}
    for rotation in rotations.values() if FULL in rotations else [rotations]:
        if "original_max_position_embeddings" in rotation:
            assert rotation["factor"] * rotation["original_max_position_embeddings"] == text.max_position_embeddings
            assert (rotation["factor"], rotation["original_max_position_embeddings"]) == (OWN_FACTOR, ORIGINAL)


def test_a_family_has_the_same_weights_each_time(tmp_path: pathlib.Path) -> None:
    def digest(folder: pathlib.Path) -> str:
        return hashlib.sha256((families.make("gemma3", folder) / "model.safetensors").read_bytes()).hexdigest()

    assert digest(tmp_path / "one") == digest(tmp_path / "other")

"""Sliding windows with one rotation: every layer has the window, or every other one."""

from __future__ import annotations

from transformers import Gemma2Config, GptOssConfig, MistralConfig, PreTrainedConfig

from tests.families.family import PLAIN, SIZES, WINDOW, YARN, Family


def gemma2() -> PreTrainedConfig:
    return Gemma2Config(
        **SIZES,
        num_hidden_layers=4,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=WINDOW,
        rope_parameters=PLAIN,
    )


def mistral_01() -> PreTrainedConfig:
    return MistralConfig(**SIZES, num_hidden_layers=2, head_dim=32, sliding_window=WINDOW, rope_parameters=PLAIN)


def gpt_oss() -> PreTrainedConfig:
    return GptOssConfig(
        **SIZES,
        num_hidden_layers=4,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        rope_parameters=YARN | {"rope_theta": 150000.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    )


FAMILIES = {
    "gemma2": Family(
        "Gemma2ForCausalLM", "every other layer has a window; logits and scores are capped", gemma2, window=WINDOW
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM", "every other layer has a window; sinks; own YaRN, not truncated", gpt_oss, window=WINDOW
    ),
    "mistral_0.1": Family("MistralForCausalLM", "every layer has a window", mistral_01, window=WINDOW),
}

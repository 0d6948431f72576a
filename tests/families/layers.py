"""A rotation for each type of layer, or none for some layers."""

from __future__ import annotations

from transformers import Cohere2Config, Gemma3TextConfig, Olmo3Config, PreTrainedConfig, SmolLM3Config

from tests.families.family import FULL, LOCAL, PLAIN, SIZES, SLIDING, WINDOW, YARN, Family

_LOCAL_TWICE = [SLIDING, SLIDING, FULL] * 2


def gemma3() -> PreTrainedConfig:
    return Gemma3TextConfig(
        **SIZES,
        num_hidden_layers=6,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=WINDOW,
        layer_types=_LOCAL_TWICE,
        rope_parameters={FULL: PLAIN, SLIDING: LOCAL},
    )


def olmo3() -> PreTrainedConfig:
    return Olmo3Config(
        **SIZES,
        num_hidden_layers=6,
        sliding_window=WINDOW,
        layer_types=_LOCAL_TWICE,
        rope_parameters={FULL: YARN, SLIDING: PLAIN},
    )


def cohere2() -> PreTrainedConfig:
    return Cohere2Config(
        **SIZES,
        num_hidden_layers=6,
        sliding_window=WINDOW - 1,  # before a token; vLLM counts the token, too
        layer_types=_LOCAL_TWICE,
        logit_scale=1.0,
        rope_parameters=PLAIN,
    )


def smollm3() -> PreTrainedConfig:
    return SmolLM3Config(**SIZES, num_hidden_layers=4, no_rope_layers=[1, 0] * 2, rope_parameters=PLAIN)


FAMILIES = {
    "gemma3": Family("Gemma3ForCausalLM", "layers with a window have a rotation of their own", gemma3, window=WINDOW),
    "olmo3": Family("Olmo3ForCausalLM", "layers with a window have plain RoPE, the others YaRN", olmo3, window=WINDOW),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        "layers without a window have no rotation",
        cohere2,
        window=WINDOW,
        in_transformers={"sliding_window": WINDOW},
    ),
    "smollm3": Family("SmolLM3ForCausalLM", "every other layer has no rotation; Transformers backend", smollm3),
}

"""A rotation for each type of layer, or none for some layers."""

from __future__ import annotations

from transformers import (
    Cohere2Config,
    Exaone4Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    LagunaConfig,
    Llama4TextConfig,
    MiMoV2FlashConfig,
    Olmo3Config,
    PreTrainedConfig,
    SmolLM3Config,
)

from tests.families.family import FULL, LOCAL, ORIGINAL, OWN_FACTOR, PLAIN, SIZES, SLIDING, WINDOW, YARN, Family

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


def gemma3n() -> PreTrainedConfig:
    return Gemma3nTextConfig(
        **SIZES,
        num_hidden_layers=6,
        num_kv_shared_layers=2,
        head_dim=32,
        sliding_window=WINDOW,
        layer_types=[SLIDING, FULL] * 3,
        rope_parameters={FULL: PLAIN, SLIDING: LOCAL},
        vocab_size_per_layer_input=SIZES["vocab_size"],
        hidden_size_per_layer_input=32,
        laurel_rank=16,
    )


def gemma4() -> PreTrainedConfig:
    return Gemma4TextConfig(
        **SIZES,
        num_hidden_layers=6,
        head_dim=32,
        global_head_dim=64,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=WINDOW,
        layer_types=_LOCAL_TWICE,
        rope_parameters={
            FULL: PLAIN | {"rope_type": "proportional", "partial_rotary_factor": 0.25},
            SLIDING: LOCAL,
        },
        hidden_size_per_layer_input=0,
    )


def laguna() -> PreTrainedConfig:
    return LagunaConfig(
        **SIZES,
        num_hidden_layers=6,
        head_dim=32,
        num_attention_heads_per_layer=[8, 8, 4] * 2,
        sliding_window=WINDOW,
        layer_types=_LOCAL_TWICE,
        rope_parameters={FULL: YARN | {"partial_rotary_factor": 0.5}, SLIDING: LOCAL},
        mlp_layer_types=["dense"] * 6,  # vLLM's router on the CPU knows no sigmoid
    )


def mimo_v2() -> PreTrainedConfig:
    local = {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 96, "swa_v_head_dim": 96}
    return MiMoV2FlashConfig(
        **SIZES,
        num_hidden_layers=4,
        head_dim=96,
        v_head_dim=96,  # narrower in the published one; vLLM's attention on the CPU takes values as wide as keys
        sliding_window=WINDOW,
        layer_types=[FULL, SLIDING] * 2,
        mlp_layer_types=["dense", "sparse"] * 2,
        moe_intermediate_size=64,
        n_routed_experts=4,
        num_experts_per_tok=2,
        # Published configurations have these, and vLLM reads them. transformers knows the thetas and the part of a
        # head that is rotated without them.
        **local,
        rope_theta=5_000_000.0,
        swa_rope_theta=10_000.0,
        partial_rotary_factor=0.334,
        sliding_window_size=WINDOW,
        hybrid_layer_pattern=[0, 1] * 2,
        moe_layer_freq=[0, 1] * 2,
        add_swa_attention_sink_bias=True,
        layernorm_epsilon=1e-5,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
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


def exaone4() -> PreTrainedConfig:
    return Exaone4Config(
        **SIZES, num_hidden_layers=6, sliding_window=WINDOW, layer_types=_LOCAL_TWICE, rope_parameters=PLAIN
    )


def llama4() -> PreTrainedConfig:
    return Llama4TextConfig(
        **SIZES,
        num_hidden_layers=6,
        head_dim=32,
        intermediate_size_mlp=256,
        num_local_experts=4,
        no_rope_layers=[1, 1, 0] * 2,
        attention_chunk_size=WINDOW,
        floor_scale=WINDOW,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": OWN_FACTOR,
            "low_freq_factor": 1.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": ORIGINAL,
        },
    )


FAMILIES = {
    "gemma3": Family("Gemma3ForCausalLM", "layers with a window have a rotation of their own", gemma3, window=WINDOW),
    "gemma3n": Family(
        "Gemma3nForCausalLM",
        "layers with a window have a rotation of their own; the last layers read keys of earlier ones",
        gemma3n,
        window=WINDOW,
    ),
    "gemma4": Family(
        "Gemma4ForCausalLM",
        "layers with a window have a rotation and heads of their own; the other rotation is proportional",
        gemma4,
        window=WINDOW,
    ),
    "laguna": Family(
        "LagunaForCausalLM",
        "layers with a window have a rotation of their own and more heads; the others YaRN of half a head",
        laguna,
        window=WINDOW,
    ),
    "mimo_v2": Family(
        "MiMoV2FlashForCausalLM",
        "layers with a window have a rotation, sinks and more heads of keys of their own; a third of a head is rotated",
        mimo_v2,
        window=WINDOW,
    ),
    "olmo3": Family("Olmo3ForCausalLM", "layers with a window have plain RoPE, the others YaRN", olmo3, window=WINDOW),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        "layers without a window have no rotation",
        cohere2,
        window=WINDOW,
        in_transformers={"sliding_window": WINDOW},
    ),
    "exaone4": Family("Exaone4ForCausalLM", "layers without a window have no rotation", exaone4, window=WINDOW),
    "llama4": Family(
        "Llama4ForCausalLM",
        "layers with chunks have a llama3 rotation with equal factors, the others none; own temperature of attention",
        llama4,
        window=WINDOW,
        # Without it, vLLM has no temperature below 32,768 tokens.
        files={"generation_config.json": {"attn_temperature_tuning": True}},
        engine={"block_size": WINDOW},  # chunks are of whole blocks
    ),
    "smollm3": Family("SmolLM3ForCausalLM", "every other layer has no rotation; Transformers backend", smollm3),
}

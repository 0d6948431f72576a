"""MLA: keys and values of all heads from one latent, whose last part is rotated."""

from __future__ import annotations

from typing import Any

from transformers import DeepseekV2Config, DeepseekV3Config, MiniCPM3Config, PreTrainedConfig

from tests.engine.device import ON_CUDA
from tests.families.family import NO_ROTARY_KERNEL, PLAIN, SIZES, YARN, Family

# vLLM's MLA on the CPU takes latents of 512 + 64.
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}


def deepseek_v2() -> PreTrainedConfig:
    """As DeepSeek-V2-Lite: queries from no latent, mscale over all dimensions as large as mscale."""
    return DeepseekV2Config(
        **SIZES | _LATENT, q_lora_rank=None, rope_parameters=YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}
    )


# Published configurations have these two, and vLLM reads them.
_SIGMOID: dict[str, Any] = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}


def deepseek_v3() -> PreTrainedConfig:
    return DeepseekV3Config(
        **SIZES | _LATENT | _SIGMOID, q_lora_rank=64, rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}
    )


def deepseek_v3_plain() -> PreTrainedConfig:
    return DeepseekV3Config(**SIZES | _LATENT | _SIGMOID, q_lora_rank=64, rope_parameters=PLAIN)


def deepseek_v3_bfloat16() -> PreTrainedConfig:
    all_experts = {"num_experts_per_tok": 4}  # rounding to 16 bits must not choose another one
    return DeepseekV3Config(
        **SIZES | _LATENT | _SIGMOID | all_experts,
        q_lora_rank=64,
        rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    )


def minicpm3() -> PreTrainedConfig:
    return MiniCPM3Config(
        **SIZES | {"num_key_value_heads": 4},
        num_hidden_layers=2,
        q_lora_rank=64,
        kv_lora_rank=64,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=32,
        scale_emb=4,
        dim_model_base=64,
        rope_parameters=PLAIN,
    )


# On a CPU with AMX, vLLM's MLA takes bfloat16 alone, unless it is told to take that of every CPU.
_FLOAT32: dict[str, Any] = {} if ON_CUDA else {"attention_backend": "CPU_MLA"}

FAMILIES = {
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM",
        "MLA without a latent of queries; own YaRN with mscale",
        deepseek_v2,
        engine=_FLOAT32,
    ),
    "deepseek_v3": Family("DeepseekV3ForCausalLM", "MLA; own YaRN with mscale", deepseek_v3, engine=_FLOAT32),
    "deepseek_v3_plain": Family(
        "DeepseekV3ForCausalLM", "MLA with plain RoPE", deepseek_v3_plain, engine=NO_ROTARY_KERNEL | _FLOAT32
    ),
    "deepseek_v3_bfloat16": Family(
        "DeepseekV3ForCausalLM",
        "MLA in 16 bits: with AMX where the CPU has it; own YaRN with mscale",
        deepseek_v3_bfloat16,
        dtype="bfloat16",
    ),
    "minicpm3": Family(
        "MiniCPM3ForCausalLM", "keys are cached for each head, and the end of each is rotated", minicpm3
    ),
}

"""Layers with a state beside layers of attention: Gated DeltaNet, short convolutions, state spaces."""

from __future__ import annotations

from typing import Any

from transformers import (
    FalconH1Config,
    Lfm2Config,
    NemotronHConfig,
    PreTrainedConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from tests.families.family import FULL, NO_ROTARY_KERNEL, PLAIN, SIZES, Family

_DELTA_TWICE = ["linear_attention", FULL] * 2
_DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": _DELTA_TWICE,
    "head_dim": 64,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
# A quarter of each head is rotated: 8 pairs.
_QUARTER = PLAIN | {"partial_rotary_factor": 0.25}


def qwen3_next() -> PreTrainedConfig:
    return Qwen3NextConfig(
        **SIZES | _DELTA,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=4,  # all: rounding to 16 bits must not choose another one
        rope_parameters=_QUARTER,
    )


def qwen3_5() -> PreTrainedConfig:
    mrope = {"mrope_section": [3, 3, 2], "mrope_interleaved": True}
    return Qwen3_5TextConfig(**SIZES | _DELTA, rope_parameters=_QUARTER | mrope)


def lfm2() -> PreTrainedConfig:
    return Lfm2Config(
        **SIZES,
        num_hidden_layers=4,
        layer_types=["conv", FULL] * 2,
        block_auto_adjust_ff_dim=False,
        # Published configurations have these two, and vLLM reads them.
        conv_dim=SIZES["hidden_size"],
        block_dim=SIZES["hidden_size"],
        rope_parameters=PLAIN,
    )


def falcon_h1() -> PreTrainedConfig:
    return FalconH1Config(
        **SIZES,
        num_hidden_layers=2,
        head_dim=32,
        mamba_d_ssm=128,
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_d_state=32,
        mamba_chunk_size=32,
        rope_parameters=PLAIN,
    )


def nemotron_h() -> PreTrainedConfig:
    return NemotronHConfig(
        **SIZES,
        layers_block_type=["linear_attention", FULL, "mlp"] * 2,
        head_dim=32,
        ssm_state_size=32,
        mamba_num_heads=8,
        mamba_head_dim=32,
        n_groups=2,
        chunk_size=32,
    )


# vLLM makes blocks so long that a state fits into one. A CPU with bfloat16 in AVX-512 keeps states in float32, whatever
# is asked for. Where all do, blocks are as long on every CPU, and shorter than the prompts whose prefixes are cached.
_STATES: dict[str, Any] = {"mamba_ssm_cache_dtype": "float32"}

# GDN on the CPU takes bfloat16 alone.
FAMILIES = {
    "qwen3_next": Family(
        "Qwen3NextForCausalLM",
        "Gated DeltaNet beside attention of which a quarter is rotated; experts",
        qwen3_next,
        dtype="bfloat16",
        engine=_STATES,
    ),
    "qwen3_5": Family(
        "Qwen3_5ForCausalLM",
        "Gated DeltaNet beside attention with interleaved M-RoPE; text alone",
        qwen3_5,
        dtype="bfloat16",
        engine=_STATES,
    ),
    "lfm2": Family("Lfm2ForCausalLM", "short convolutions beside attention", lfm2, engine=NO_ROTARY_KERNEL),
    "falcon_h1": Family(
        "FalconH1ForCausalLM",
        "a state space and attention in each layer",
        falcon_h1,
        # vLLM's state space for the CPU keeps no states in the middle of a prompt, which its prefix cache asks for.
        engine={"enable_prefix_caching": False},
    ),
    "nemotron_h": Family("NemotronHForCausalLM", "state spaces beside attention without any rotation", nemotron_h),
}

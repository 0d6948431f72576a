"""Architectures that transformers has no model of: published names and layouts for the weights of one that computes
the same."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from transformers import Gemma3TextConfig, LlamaConfig, PreTrainedConfig, Step3p7Config

from tests.families.family import (
    FULL,
    LOCAL,
    NO_SPECIAL_TOKENS,
    ORIGINAL,
    OWN_FACTOR,
    PLAIN,
    SIZES,
    SLIDING,
    TRAINED,
    WINDOW,
    Family,
)

_HEADS, _PAIRS_OF_HEADS = SIZES["num_attention_heads"], SIZES["num_key_value_heads"]
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": OWN_FACTOR,
    "low_freq_factor": 1.0,
    "high_freq_factor": 8.0,
    "original_max_position_embeddings": ORIGINAL,
}
_LAYERS = [SLIDING, SLIDING, FULL] * 2
# vLLM is told of these configurations by code beside them, as published ones bring it.
TRUST: dict[str, Any] = {"trust_remote_code": True}


def internlm2() -> PreTrainedConfig:
    """As InternLM 2.5: dynamic NTK."""
    dynamic = PLAIN | {"rope_type": "dynamic", "factor": OWN_FACTOR}
    return LlamaConfig(**SIZES, num_hidden_layers=2, rope_parameters=dynamic)


def plamo3() -> PreTrainedConfig:
    return Gemma3TextConfig(
        **SIZES,
        num_hidden_layers=6,
        head_dim=32,
        query_pre_attn_scalar=32,
        hidden_activation="silu",
        sliding_window=WINDOW,
        layer_types=_LAYERS,
        tie_word_embeddings=False,
        rope_parameters={FULL: PLAIN, SLIDING: LOCAL},
    )


def step3_5() -> PreTrainedConfig:
    """The text of Step 3.7."""
    text = {
        **SIZES,
        "num_hidden_layers": 6,
        "head_dim": 32,
        "layer_types": _LAYERS,
        # One expert: vLLM's router on the CPU knows no sigmoid, and among one there is no choice.
        "mlp_layer_types": ["dense", "dense", "sparse"] * 2,
        "num_local_experts": 1,
        "n_routed_experts": 1,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 64,
        "share_expert_dim": 64,
        "num_sliding_attention_heads": 8,
        "sliding_window": WINDOW,
        "pad_token_id": 0,
        "rope_parameters": {
            FULL: _LLAMA3 | {"rope_theta": PLAIN["rope_theta"], "partial_rotary_factor": 0.5},
            SLIDING: LOCAL,
        },
    }
    tower = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    return Step3p7Config(text_config=text, vision_config=tower, **NO_SPECIAL_TOKENS)


def _published_step3_5() -> dict[str, Any]:
    return {
        **SIZES,
        "model_type": "step3p5",
        "architectures": ["Step3p5ForCausalLM"],
        "num_hidden_layers": 6,
        "num_attention_groups": SIZES["num_key_value_heads"],
        "max_seq_len": TRAINED,
        "head_dim": 32,
        "rms_norm_eps": 1e-5,
        "layer_types": _LAYERS,
        "attention_other_setting": {
            "attention_type": SLIDING,
            "num_attention_heads": 8,
            "num_attention_groups": SIZES["num_key_value_heads"],
            "head_dim": 32,
        },
        "sliding_window": WINDOW,
        "use_head_wise_attn_gate": True,
        "use_rope_layers": [],
        "rope_theta": [LOCAL["rope_theta"], LOCAL["rope_theta"], PLAIN["rope_theta"]] * 2,
        "partial_rotary_factors": [1.0, 1.0, 0.5] * 2,
        "rope_scaling": _LLAMA3,
        "yarn_only_types": [FULL],
        "moe_layers_enum": "2,5",
        "moe_num_experts": 1,
        "moe_top_k": 1,
        "moe_intermediate_size": 64,
        "share_expert_dim": 64,
        "moe_router_activation": "softmax",
        "tie_word_embeddings": False,
    }


def _published_internlm2() -> dict[str, Any]:
    return {
        **SIZES,
        "model_type": "internlm2",
        "architectures": ["InternLM2ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_internlm2.InternLM2Config"},
        "num_hidden_layers": 2,
        "hidden_act": "silu",
        "bias": False,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "dynamic", "factor": OWN_FACTOR},
    }


def _published_plamo3() -> dict[str, Any]:
    return {
        **SIZES,
        "model_type": "plamo3",
        "architectures": ["Plamo3ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_plamo3.Plamo3Config"},
        "num_hidden_layers": 6,
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_theta": PLAIN["rope_theta"],
        "rope_local_theta": LOCAL["rope_theta"],
        "sliding_window_pattern": 3,
        "interleaved_sliding_window": [WINDOW, WINDOW, None] * 2,
        "layer_types": _LAYERS,
    }


def _as_internlm2(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {
        "model.embed_tokens": "model.tok_embeddings",
        "lm_head": "output",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    renamed = _renamed(weights, names, merged="q|k|v")
    for layer in range(2):
        here = f"model.layers.{layer}"
        # For each head of keys: its heads of queries, itself, its head of values.
        parts = (
            weights[f"{here}.self_attn.{part}_proj.weight"].unflatten(0, (_PAIRS_OF_HEADS, -1, 32)) for part in "qkv"
        )
        renamed[f"{here}.attention.wqkv.weight"] = torch.cat(list(parts), dim=1).flatten(0, 2).contiguous()
    return renamed


def _as_plamo3(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gemma multiplies embeddings, and adds 1 to the weights of every norm; PLaMo 3 adds less after a part."""
    names = {
        "model.layers": "model.layers.layers",
        "self_attn.o_proj": "mixer.o_proj",
        "self_attn.q_norm": "mixer.q_norm",
        "self_attn.k_norm": "mixer.k_norm",
        "input_layernorm": "pre_mixer_norm",
        "post_attention_layernorm": "post_mixer_norm",
        "pre_feedforward_layernorm": "pre_mlp_norm",
        "post_feedforward_layernorm": "post_mlp_norm",
    }
    renamed = _renamed(weights, names, merged="q|k|v|gate|up")
    renamed["model.embed_tokens.weight"] = renamed["model.embed_tokens.weight"] * SIZES["hidden_size"] ** 0.5
    for layer in range(6):
        here, there = f"model.layers.{layer}", f"model.layers.layers.{layer}"
        attention = [weights[f"{here}.self_attn.{part}_proj.weight"] for part in "qkv"]
        renamed[f"{there}.mixer.qkv_proj.weight"] = torch.cat(attention)
        halves = [weights[f"{here}.mlp.{part}_proj.weight"] for part in ("gate", "up")]
        renamed[f"{there}.mlp.gate_up_proj.weight"] = torch.cat(halves)
        renamed[f"{there}.post_mixer_norm.weight"] = renamed[f"{there}.post_mixer_norm.weight"] + 1 - 1 / 5
        renamed[f"{there}.post_mlp_norm.weight"] = renamed[f"{there}.post_mlp_norm.weight"] + 1 - 1 / 5**1.5
    return renamed


def _as_step3_5(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without its tower."""
    text = {
        name.replace("model.language_model.", "model."): weight
        for name, weight in weights.items()
        if name.startswith(("model.language_model.", "lm_head."))
    }
    names = {"mlp.gate": "moe.gate", "mlp.shared_experts": "share_expert"}
    renamed = _renamed(text, names, merged=r"mlp\.experts\.\w+")
    for layer in (2, 5):
        here = f"model.layers.{layer}"
        gate, up = text[f"{here}.mlp.experts.gate_up_proj"].chunk(2, dim=1)
        renamed[f"{here}.moe.gate_proj.weight"] = gate.contiguous()
        renamed[f"{here}.moe.up_proj.weight"] = up.contiguous()
        renamed[f"{here}.moe.down_proj.weight"] = text[f"{here}.mlp.experts.down_proj"].clone()
        renamed[f"{here}.moe.router_bias"] = renamed.pop(f"{here}.moe.gate.e_score_correction_bias")
    return renamed


def _renamed(weights: dict[str, Tensor], names: dict[str, str], *, merged: str) -> dict[str, Tensor]:
    """All weights under their new names, but those of projections that are merged into one, a pattern."""
    renamed = {}
    for name, weight in weights.items():
        if not re.search(rf"\.({merged})_proj(\.|$)", name):
            for old, new in names.items():
                name = name.replace(f"{old}.", f"{new}.")
            renamed[name] = weight.clone()
    return renamed


def _code(name: str, model_type: str) -> dict[str, Any]:
    """A module with a class of a configuration."""
    # transformers asks for this before it has read it from config.json.
    source = f"class {name}(PreTrainedConfig):\n    model_type = {model_type!r}\n    max_position_embeddings = 0\n"
    return {f"configuration_{model_type}.py": f"from transformers import PreTrainedConfig\n\n\n{source}"}


FAMILIES = {
    "internlm2": Family(
        "InternLM2ForCausalLM",
        "own dynamic NTK; merged queries, keys and values",
        internlm2,
        engine=TRUST,
        model="LlamaForCausalLM",
        published=_published_internlm2,
        renamed=_as_internlm2,
        files=_code("InternLM2Config", "internlm2"),
    ),
    "plamo3": Family(
        "Plamo3ForCausalLM",
        "layers with a window have a rotation of their own",
        plamo3,
        window=WINDOW,
        engine=TRUST,
        model="Gemma3ForCausalLM",
        published=_published_plamo3,
        renamed=_as_plamo3,
        files=_code("Plamo3Config", "plamo3"),
    ),
    "step3_5": Family(
        "Step3p5ForCausalLM",
        "layers with a window have a rotation of their own and more heads; the others llama3 of half a head",
        step3_5,
        window=WINDOW,
        model="Step3p7ForConditionalGeneration",
        published=_published_step3_5,
        renamed=_as_step3_5,
    ),
}

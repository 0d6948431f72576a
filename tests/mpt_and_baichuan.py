"""Tiny checkpoints of MPT and Baichuan: random weights under the names of the published ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# 12 heads: their slopes are not those of a power of two.
HEADS, WIDTH, LAYERS, VOCABULARY = 12, 384, 2, 320

# config.json of mosaicml/mpt-7b, but for what only trains.
MPT_7B: dict[str, Any] = {
    "architectures": ["MPTForCausalLM"],
    "attn_config": {
        "alibi": True,
        "alibi_bias_max": 8,
        "attn_impl": "torch",
        "attn_pdrop": 0,
        "attn_type": "multihead_attention",
        "attn_uses_sequence_id": False,
        "clip_qkv": None,
        "prefix_lm": False,
        "qk_ln": False,
        "softmax_scale": None,
    },
    "auto_map": {
        "AutoConfig": "configuration_mpt.MPTConfig",
        "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM",
    },
    "d_model": 4096,
    "emb_pdrop": 0,
    "embedding_fraction": 1.0,
    "expansion_ratio": 4,
    "init_config": {"name": "kaiming_normal_"},
    "init_device": "cpu",
    "learned_pos_emb": True,  # without effect where alibi is
    "logit_scale": None,
    "max_seq_len": 2048,
    "model_type": "mpt",
    "n_heads": 32,
    "n_layers": 32,
    "no_bias": True,
    "norm_type": "low_precision_layernorm",
    "resid_pdrop": 0,
    "tokenizer_name": "EleutherAI/gpt-neox-20b",
    "torch_dtype": "bfloat16",
    "use_cache": False,
    "verbose": 0,
    "vocab_size": 50432,
}
TINY_MPT: dict[str, Any] = MPT_7B | {
    "d_model": WIDTH,
    "n_heads": HEADS,
    "n_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "torch_dtype": "float32",
    "tokenizer_name": None,
}
# config.json of baichuan-inc/Baichuan-13B-Base.
BAICHUAN_13B: dict[str, Any] = {
    "architectures": ["BaichuanForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_baichuan.BaichuanConfig",
        "AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM",
    },
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 13696,
    "model_max_length": 4096,
    "model_type": "baichuan",
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 64000,
}
TINY_BAICHUAN: dict[str, Any] = BAICHUAN_13B | {
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "torch_dtype": "float32",
    "vocab_size": VOCABULARY,
}


def mpt_weights(config: dict[str, Any]) -> dict[str, Tensor]:
    """Of an MPT with tied embeddings; with biases where ``no_bias`` is false."""
    width, draw = config["d_model"], torch.Generator().manual_seed(0)
    inner = config["expansion_ratio"] * width
    shapes: dict[str, tuple[int, int]] = {}
    norms = ["transformer.norm_f"]
    for layer in range(config["n_layers"]):
        block = f"transformer.blocks.{layer}"
        norms += [f"{block}.norm_1", f"{block}.norm_2"]
        shapes |= {
            f"{block}.attn.Wqkv": (3 * width, width),
            f"{block}.attn.out_proj": (width, width),
            f"{block}.ffn.up_proj": (inner, width),
            f"{block}.ffn.down_proj": (width, inner),
        }
    weights = {f"{name}.weight": _matrix(shape, draw) for name, shape in shapes.items()}
    weights |= {f"{name}.weight": _around_one(width, draw) for name in norms}
    if not config["no_bias"]:
        sizes = {name: shape[0] for name, shape in shapes.items()} | dict.fromkeys(norms, width)
        weights |= {f"{name}.bias": 0.1 * torch.randn(size, generator=draw) for name, size in sizes.items()}
    weights["transformer.wte.weight"] = _matrix((config["vocab_size"], width), draw)
    return weights


def baichuan_weights(config: dict[str, Any]) -> dict[str, Tensor]:
    width, inner, draw = config["hidden_size"], config["intermediate_size"], torch.Generator().manual_seed(0)
    weights = {"model.embed_tokens.weight": _matrix((config["vocab_size"], width), draw)}
    for layer in range(config["num_hidden_layers"]):
        here = f"model.layers.{layer}"
        weights |= {
            f"{here}.input_layernorm.weight": _around_one(width, draw),
            f"{here}.self_attn.W_pack.weight": _matrix((3 * width, width), draw),
            f"{here}.self_attn.o_proj.weight": _matrix((width, width), draw),
            f"{here}.post_attention_layernorm.weight": _around_one(width, draw),
            f"{here}.mlp.gate_proj.weight": _matrix((inner, width), draw),
            f"{here}.mlp.up_proj.weight": _matrix((inner, width), draw),
            f"{here}.mlp.down_proj.weight": _matrix((width, inner), draw),
        }
    weights["model.norm.weight"] = _around_one(width, draw)
    weights["lm_head.weight"] = 2 * _matrix((config["vocab_size"], width), draw)
    return weights


def as_llama(config: dict[str, Any], weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The Llama that a Baichuan with rotary embeddings is: its configuration, and weights with ``W_pack`` in three."""
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    renamed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if ".W_pack." in name:
            parts = zip("qkv", weight.chunk(3), strict=True)
            renamed |= {name.replace("W_pack", f"{part}_proj"): rows.contiguous() for part, rows in parts}
        else:
            renamed[name] = weight
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": config["rms_norm_eps"]}
    return llama | {size: config[size] for size in sizes}, renamed


def _matrix(shape: tuple[int, int], draw: torch.Generator) -> Tensor:
    # Large enough that attention depends on position: the tests must see a wrong slope.
    return 0.08 * torch.randn(shape, generator=draw)


def _around_one(size: int, draw: torch.Generator) -> Tensor:
    return 1 + 0.2 * torch.randn(size, generator=draw)

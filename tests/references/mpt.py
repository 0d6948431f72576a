"""MPT (MosaicML 2023; llm-foundry, llmfoundry/models/mpt/modeling_mpt.py), from a checkpoint's own names, in float64.

A block adds attention over the normalised input, then a feed-forward layer over the normalised sum (`MPTBlock`).
Projections are cut off at `clip_qkv` before they are split; scores are scaled, and ALiBi is added (`attention.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from tests.references.alibi import alibi_attention


def mpt_slopes(num_heads: int, alibi_bias_max: float) -> list[float]:
    """The slope of every head (`gen_slopes`).

    A geometric sequence for the power of two at or above the number of heads; where it is above, the second, the
    fourth and so on come first, then the first, the third, and what is over is left out.
    """
    power = 2 ** math.ceil(math.log2(num_heads))
    slopes = [2.0 ** (-alibi_bias_max * (head + 1) / power) for head in range(power)]
    return slopes if power == num_heads else (slopes[1::2] + slopes[::2])[:num_heads]


def mpt_logits(weights: Mapping[str, Tensor], tokens: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Logits after each token, `[num_tokens, vocab_size]`.

    Args:
        weights: by their names in a checkpoint; biases are added where they are there.
        config: the keys of a checkpoint's configuration, those of `attn_config` among them.
    """
    given = {name: weight.double() for name, weight in weights.items()}
    attention = config["attn_config"]
    num_heads, width = config["n_heads"], config["d_model"]
    slopes = mpt_slopes(num_heads, attention["alibi_bias_max"])
    scale = attention.get("softmax_scale") or 1 / math.sqrt(width / num_heads)

    def linear(name: str, states: Tensor) -> Tensor:
        return states @ given[f"{name}.weight"].T + given.get(f"{name}.bias", torch.zeros(()))

    def norm(name: str, states: Tensor) -> Tensor:
        return layer_norm(states, (width,), given[f"{name}.weight"], given.get(f"{name}.bias"), 1e-5)

    hidden = given["transformer.wte.weight"][tokens]
    for layer in range(config["n_layers"]):
        block = f"transformer.blocks.{layer}"
        projected = linear(f"{block}.attn.Wqkv", norm(f"{block}.norm_1", hidden))
        if limit := attention.get("clip_qkv"):
            projected = projected.clamp(-limit, limit)
        query, key, value = projected.reshape(len(tokens), 3, num_heads, -1).unbind(1)
        attended = alibi_attention(query, key, value, scale, slopes)
        hidden = hidden + linear(f"{block}.attn.out_proj", attended.flatten(1))
        inner = gelu(linear(f"{block}.ffn.up_proj", norm(f"{block}.norm_2", hidden)))
        hidden = hidden + linear(f"{block}.ffn.down_proj", inner)
    logits = norm("transformer.norm_f", hidden) @ given["transformer.wte.weight"].T
    multiplier = config.get("logit_scale")
    if multiplier == "inv_sqrt_d_model":
        multiplier = 1 / math.sqrt(width)
    return logits if multiplier is None else logits * multiplier

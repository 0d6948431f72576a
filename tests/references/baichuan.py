"""Baichuan and Baichuan 2 (Yang et al. 2023, arXiv:2309.10305, section 2), from a checkpoint's own names, in float64.

Llama's blocks: RMSNorm before attention and before SwiGLU. One matrix projects to queries, keys and values, in this
order. The 13B have ALiBi, the 7B rotary embeddings. Baichuan 2's output embedding has rows of length 1 ("NormHead").
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import silu

from tests.references.alibi import alibi_attention, alibi_slopes
from tests.references.rotary import rotary_attention


def baichuan_logits(
    weights: Mapping[str, Tensor], tokens: Tensor, *, num_heads: int, alibi: bool, norm_head: bool
) -> Tensor:
    """Logits after each token, `[num_tokens, vocab_size]`."""
    given = {name: weight.double() for name, weight in weights.items()}
    hidden = given["model.embed_tokens.weight"][tokens]
    layer = 0
    while f"model.layers.{layer}.input_layernorm.weight" in given:
        here = f"model.layers.{layer}"
        states = _rms_norm(hidden, given[f"{here}.input_layernorm.weight"])
        projected = states @ given[f"{here}.self_attn.W_pack.weight"].T
        query, key, value = projected.reshape(len(tokens), 3, num_heads, -1).unbind(1)
        head_dim = query.shape[-1]
        scale = 1 / math.sqrt(head_dim)
        if alibi:
            attended = alibi_attention(query, key, value, scale, alibi_slopes(num_heads))
        else:
            inv_freq = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
            attended = rotary_attention(query, key, value, scale, inv_freq, is_neox_style=True)
        hidden = hidden + attended.flatten(1) @ given[f"{here}.self_attn.o_proj.weight"].T
        states = _rms_norm(hidden, given[f"{here}.post_attention_layernorm.weight"])
        gate, up = (states @ given[f"{here}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        hidden = hidden + (silu(gate) * up) @ given[f"{here}.mlp.down_proj.weight"].T
        layer += 1
    head = given["lm_head.weight"]
    if norm_head:
        head = head / head.norm(dim=1, keepdim=True)
    return _rms_norm(hidden, given["model.norm.weight"]) @ head.T


def _rms_norm(states: Tensor, weight: Tensor) -> Tensor:
    return states / (states.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

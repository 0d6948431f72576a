"""A checkpoint of transformers with its rotary embedding at another scale, for evaluation without a server."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from transformers import LlamaForCausalLM

from posenc_runtime.encodings.scaling import from_parameters
from posenc_runtime.encodings.spec import RotarySpec


@dataclass(frozen=True)
class Scaling:
    """A method and its factor. Factor 1 is the unscaled model with every method."""

    method: str = "default"
    factor: float = 1.0


def factor_for(tokens: int, trained_length: int) -> float:
    """The smallest power of two that, times the trained length, is at least `tokens`."""
    return float(2 ** max(0, math.ceil(math.log2(tokens / trained_length))))


@contextmanager
def scaled(model: LlamaForCausalLM, scaling: Scaling) -> Iterator[None]:
    """Set the model's rotary embedding to another scale within the ``with`` block."""
    rotary = model.model.rotary_emb
    config = model.config.to_dict()
    spec = RotarySpec(
        rotary_dim=config["head_dim"],
        rope_theta=float(config["rope_parameters"]["rope_theta"]),
        original_max_position_embeddings=config["max_position_embeddings"],
    )
    frequencies = from_parameters(scaling.method, {}).frequencies(spec, scaling.factor)
    kept = rotary.inv_freq, rotary.attention_scaling
    rotary.inv_freq = frequencies.inv_freq.to(kept[0])
    rotary.attention_scaling = frequencies.attention_factor
    try:
        yield
    finally:
        rotary.inv_freq, rotary.attention_scaling = kept

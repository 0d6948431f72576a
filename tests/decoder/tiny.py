"""Tiny decoders, one for each encoding and for each of its conventions, with weights that make positions matter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.decoder.decoder import PosencForCausalLM

TRAINED_LENGTH = 24
VOCABULARY = 50
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": TRAINED_LENGTH,
    "initializer_range": 0.3,
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 24}
CASES: dict[str, dict[str, Any]] = {
    "alibi": {"position_encoding_type": "alibi"},
    "alibi_sqrt": {"position_encoding_type": "alibi_sqrt", "alibi_bias_max": 4.0},
    "cope": {"position_encoding_type": "cope", "cope_npos_max": 6},
    "cope as in the authors' repository": {
        "position_encoding_type": "cope",
        "cope_npos_max": 6,
        "cope_qe_scale": "head_dim",
        "cope_shared": True,
    },
    "kerple_log": {"position_encoding_type": "kerple_log"},
    "kerple_power": {"position_encoding_type": "kerple_power"},
    "learned": {"position_encoding_type": "learned"},
    "none": {"position_encoding_type": "none"},
    "rope": {"position_encoding_type": "rope"},
    "rope_linear_attention": {"position_encoding_type": "rope_linear_attention"},
    "rope with yarn": {"position_encoding_type": "rope", "rope_parameters": YARN},
    "shaw": {"position_encoding_type": "shaw", "max_relative_position": 5},
    "sinusoidal": {"position_encoding_type": "sinusoidal"},
    "t5": {
        "position_encoding_type": "t5",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
    },
    "transformer_xl": {"position_encoding_type": "transformer_xl"},
    "xpos": {"position_encoding_type": "xpos", "xpos_scale_base": 8},
}
# Both have no position past the trained length.
ABSOLUTE = ("learned", "sinusoidal")


def model(case: str, **others: Any) -> PosencForCausalLM:
    """In evaluation mode; the weights are the same for the same case."""
    torch.manual_seed(0)
    made = PosencForCausalLM(PosencConfig(**{**SIZES, **CASES[case], **others})).eval()
    with torch.no_grad():
        for weight in position_weights(made).values():
            weight.normal_(std=0.7)
    return made


def position_weights(decoder: PosencForCausalLM) -> dict[str, Tensor]:
    return {name: weight for name, weight in decoder.named_parameters() if ".position." in name}


def some_ids(batch: int, length: int, seed: int = 1) -> Tensor:
    """Never 0, which tests that generate call padding."""
    return torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))

"""Tiny checkpoints of real architectures with random weights, made on the spot: no hub can be reached."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast

TRAINED = 256  # tokens
_CHAT = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


# For save_tiny: heads as wide as those of real models. Sums of four times as many products stay as large.
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "std": 0.075}


def save_tiny(folder: pathlib.Path, model_type: str = "llama", *, std: float = 0.15, **config: Any) -> pathlib.Path:
    """Save a checkpoint of two layers and 32,000 weights or so, trained (it says) on 256 tokens."""
    settings = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": TRAINED,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return save(folder, AutoConfig.for_model(model_type, **(settings | config)), std)


def save(folder: pathlib.Path, config: PreTrainedConfig, std: float = 0.15) -> pathlib.Path:
    """Save a checkpoint of any architecture with random weights, and a tokenizer of 256 tokens.

    Args:
        std: of the weights. Large enough that attention depends on position, or tests would not see a wrong rotation;
            and no larger, or the smallest rounding would show.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=std)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def save_weights(folder: pathlib.Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> pathlib.Path:
    """Save a checkpoint of an architecture that transformers has no model of, or another one."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: 256 tokens, any text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=_CHAT)

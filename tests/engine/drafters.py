"""What drafts tokens for the tiny checkpoint: an n-gram, the checkpoint itself, and an EAGLE head of random weights."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import torch
from safetensors.torch import load_file

from tests.checkpoints import save_weights

NUM_DRAFTED = 3


def speculative_config(method: str, tiny: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    """vLLM's argument of that name, for three drafted tokens a step."""
    of_method: dict[str, Any] = {
        "ngram": lambda: {"prompt_lookup_min": 1, "prompt_lookup_max": 3},
        "draft_model": lambda: {"model": str(tiny)},
        "eagle": lambda: {"model": str(_eagle(tiny, folder / "eagle"))},
    }
    return {"method": method, "num_speculative_tokens": NUM_DRAFTED} | of_method[method]()


def _eagle(tiny: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The last layer of a checkpoint over its hidden states; EAGLE has no norm before its only layer."""
    config = json.loads((tiny / "config.json").read_text())
    last = f"model.layers.{config['num_hidden_layers'] - 1}."
    weights = {
        f"layers.0.{name.removeprefix(last)}": weight
        for name, weight in load_file(tiny / "model.safetensors").items()
        if name.startswith(last) and "input_layernorm" not in name
    }
    width = config["hidden_size"]
    weights["fc.weight"] = torch.cat((torch.zeros(width, width), torch.eye(width)), 1)
    return save_weights(folder, config | {"num_hidden_layers": 1}, weights)

"""What drafts tokens: an n-gram, the tiny checkpoint, an EAGLE head, and a checkpoint that has a layer for it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import save_tiny, save_weights

NUM_DRAFTED = 3


def speculative_config(method: str, tiny: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    """vLLM's argument of that name, for three drafted tokens a step."""
    of_method: dict[str, Any] = {
        "ngram": lambda: {"prompt_lookup_min": 1, "prompt_lookup_max": 3},
        "draft_model": lambda: {"model": str(tiny)},
        "eagle": lambda: {"model": str(_eagle(tiny, folder / "eagle"))},
        "eagle3": lambda: {"model": str(_eagle3(tiny, folder / "eagle3"))},
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


def _eagle3(tiny: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The last layer of a checkpoint over what comes into it. EAGLE-3 reads states of several layers."""
    config = json.loads((tiny / "config.json").read_text())
    last, width = f"model.layers.{config['num_hidden_layers'] - 1}.", config["hidden_size"]
    theirs = load_file(tiny / "model.safetensors")
    weights = {
        f"midlayer.{name.removeprefix(last)}": weight for name, weight in theirs.items() if name.startswith(last)
    }
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = weights[f"midlayer.self_attn.{name}.weight"]
        weights[f"midlayer.self_attn.{name}.weight"] = torch.cat((torch.zeros_like(weight), weight), 1)
    weights |= {
        "midlayer.hidden_norm.weight": torch.ones(width),
        "fc.weight": torch.cat((torch.zeros(width, width), torch.eye(width)), 1),
        "norm.weight": theirs["model.norm.weight"],
        "lm_head.weight": theirs["lm_head.weight"],
    }
    own = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": config["vocab_size"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]},
    }
    return save_weights(folder, config | own, weights)


def save_shorter(tiny: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The same model, which says that it was trained on half as many tokens."""
    config = json.loads((tiny / "config.json").read_text())
    shorter = config | {"max_position_embeddings": config["max_position_embeddings"] // 2}
    return save_weights(folder, shorter, load_file(tiny / "model.safetensors"))


def save_with_mtp(folder: pathlib.Path) -> pathlib.Path:
    """A GLM-4.5 with a layer that drafts, whose weights are those of its last layer: transformers leaves it out."""
    config = {
        "num_hidden_layers": 3,
        "first_k_dense_replace": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 64,
        "num_nextn_predict_layers": 1,
        "use_qk_norm": False,
    }
    save_tiny(folder, "glm4_moe", **config)
    weights = load_file(folder / "model.safetensors")
    own = {
        name.replace("model.layers.2.", "model.layers.3."): weight.clone()
        for name, weight in weights.items()
        if name.startswith("model.layers.2.")
    }
    width = weights["lm_head.weight"].shape[1]
    ones = torch.ones(width)
    own |= {f"model.layers.3.{name}.weight": ones.clone() for name in ("enorm", "hnorm", "shared_head.norm")}
    # It reads embeddings, too, which vLLM leaves out at position 0.
    own["model.layers.3.eh_proj.weight"] = torch.cat((0.1 * torch.eye(width), torch.eye(width)), 1)
    own["model.layers.3.embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
    own["model.layers.3.shared_head.head.weight"] = weights["lm_head.weight"].clone()
    save_file(weights | own, folder / "model.safetensors", metadata={"format": "pt"})
    return folder

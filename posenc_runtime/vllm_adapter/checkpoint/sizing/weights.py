"""The bytes of a model's weights: of its files, or estimated from its configuration."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

_INDEX = "model.safetensors.index.json"
# Bits of a quantised number, by quantization_config.quant_method. Factors of groups come on top, or are counted in.
_BITS = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4.25, "nvfp4": 4.5}
# What stays in the model's own data type.
_NOT_QUANTISED = ("embed", "lm_head", "norm", "router", "gate.weight", "bias", "sinks", "visual", "vision")


@dataclasses.dataclass(frozen=True)
class Weights:
    """The size of a model's weights.

    Attributes:
        num_bytes: None where it is unknown.
        how: how it is known, or why it is not.
    """

    num_bytes: int | None
    how: str


def weights_of(folder: str, text_config: Any, model_bytes: int) -> Weights:
    """The size of a checkpoint's weights.

    Args:
        folder: where its configuration is, and perhaps its weights; a name where there is no folder.
        text_config: the configuration of its text.
        model_bytes: bytes of a number that is not quantised.
    """
    return of_files(pathlib.Path(folder)) or estimate_weights(text_config, model_bytes)


def of_files(folder: pathlib.Path) -> Weights | None:
    """The size of a folder's files of weights, or what their index says; None where there are none."""
    index = folder / _INDEX
    files = [path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated")]
    if index.is_file():
        said = json.loads(index.read_text(encoding="utf-8"))
        if total := said.get("metadata", {}).get("total_size"):
            return Weights(int(total), f"as {_INDEX} says")
        files = [folder / name for name in sorted(set(said.get("weight_map", {}).values()))]
    if not files or not all(path.is_file() for path in files):
        return None
    return Weights(sum(path.stat().st_size for path in files), "the checkpoint's files")


def estimate_weights(text_config: Any, model_bytes: int) -> Weights:
    """The size by the parameters of the model that transformers makes of the configuration, without memory for them."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(text_config)
    except Exception as error:  # a model's own code may raise anything
        return Weights(None, f"transformers cannot build the model from its configuration ({type(error).__name__})")
    quantisation = getattr(text_config, "quantization_config", None) or {}
    bits = _bits(quantisation if isinstance(quantisation, Mapping) else quantisation.to_dict())
    number, num_bytes = 0, 0.0
    for name, parameter in model.named_parameters():  # parameters that two names share are counted once
        number += parameter.numel()
        is_whole = bits is None or any(part in name for part in _NOT_QUANTISED)
        num_bytes += parameter.numel() * (model_bytes if is_whole or bits is None else bits / 8)
    quantised = "" if bits is None else f", most of {bits:g} bits"
    return Weights(
        round(num_bytes), f"estimated: {number / 1e9:.2f} billion parameters of the text's layers{quantised}"
    )


def _bits(quantisation: Mapping[str, Any]) -> float | None:
    if not quantisation:
        return None
    return _BITS.get(str(quantisation.get("quant_method"))) or quantisation.get("bits")

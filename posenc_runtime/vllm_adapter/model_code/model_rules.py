"""Reasons against scaling an architecture, from its source in vLLM and its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from posenc_runtime.vllm_adapter.model_code.model_source import (
    fixed_rope_type,
    has_latent_attention,
    has_own_model,
    mentions,
    module_of,
    reader_of_the_table,
    sources,
)
from posenc_runtime.vllm_adapter.model_code.rope_parameters import scaled_rope_parameters

# Some models have keys for the bases of some layers: rope_local_theta, swa_rope_theta, swa_rope_parameters.
_BASES = re.compile(r"(theta|base_freq|rope_parameters)$")


def reason_against_scaling(hf_text_config: Any, architecture: str) -> str | None:
    """Why requests of an architecture would not all run at their scales, as a sentence; None if they do.

    Args:
        hf_text_config: a configuration with ``rope_parameters``.
    """
    rope_type = scaled_rope_parameters(hf_text_config)["rope_type"]
    if not has_own_model(architecture):
        return None  # it runs on vLLM's Transformers backend, whose rotary embedding is one class
    if next(sources(architecture), None) is None:
        return (
            f"posenc does not serve {architecture}: posenc reads the source of its model in vLLM, "
            f"{module_of(architecture)}, to find how it rotates, and cannot read it"
        )
    if reader := reader_of_the_table(hf_text_config, architecture):
        return (
            f"posenc does not serve {architecture}: {reader} of vLLM reads the table of cosines and sines "
            "without calling the rotary embedding, so every request would run unscaled: serve it with `vllm serve`, "
            "without posenc"
        )
    fixed = fixed_rope_type(architecture)
    if fixed not in (None, rope_type):
        return (
            f"posenc does not serve {architecture} with rope_type {rope_type}: its model in vLLM rotates by {fixed}, "
            "whatever rope_parameters say"
        )
    return None


def caches_latents(hf_text_config: Any, architecture: str) -> bool:
    """Whether a model has multi-head latent attention. vLLM's own list of such models is not complete."""
    return getattr(hf_text_config, "kv_lora_rank", None) is not None and has_latent_attention(architecture)


def other_bases(hf_text_config: Any, architecture: str) -> str | None:
    """The key, with its value, that gives some layers another base; None if all layers that rotate have one base.

    A base of 0 means that the layer does not rotate.
    """
    own = scaled_rope_parameters(hf_text_config)["rope_theta"]
    are_alike = len(set(getattr(hf_text_config, "layer_types", None) or ())) == 1
    for key, value in sorted(vars(hf_text_config).items()):
        if key in ("rope_parameters", "rope_theta") or not _BASES.search(key):
            continue
        if isinstance(value, list | tuple):
            bases = _numbers(*value)
        else:
            of_some = value.get("rope_theta") if isinstance(value, Mapping) else value
            bases = set() if are_alike else _numbers(own, of_some)
        if len(bases) > 1 and mentions(architecture, key):
            return f"{key} {value}" if isinstance(value, list | tuple) else f"rope_theta {own} and {key} {value}"
    return None


def _numbers(*values: Any) -> set[float]:
    return {float(value) for value in values if isinstance(value, int | float) and value > 0}

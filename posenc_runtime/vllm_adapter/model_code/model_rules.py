"""Reasons against scaling an architecture or turning its cached keys, from its source in vLLM and its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from posenc_runtime.vllm_adapter.model_code.model_source import (
    condition_of_rotating,
    fixed_rope_type,
    has_latent_attention,
    has_own_model,
    mentions,
    module_of,
    reader_of_the_table,
    sources,
)

# Some models have keys for the bases of some layers: rope_local_theta, swa_rope_theta, swa_rope_parameters.
_BASES = re.compile(r"(theta|base_freq|rope_parameters)$")


def reason_against_scaling(hf_text_config: Any, architecture: str) -> str | None:
    """Why requests of an architecture would not all run at their scales, as a sentence; None if they do.

    Args:
        hf_text_config: a configuration with one ``rope_parameters`` for all layers.
    """
    rope_type = hf_text_config.rope_parameters["rope_type"]
    if not has_own_model(architecture):
        return (
            f"posenc does not serve {architecture}: vLLM has no model of its own for it, and its Transformers backend "
            "does not use vLLM's rotary embedding, so every request would run unscaled"
        )
    if next(sources(architecture), None) is None:
        return (
            f"posenc does not serve {architecture}: posenc reads the source of its model in vLLM, "
            f"{module_of(architecture)}, to find how it rotates, and cannot read it"
        )
    if reader := reader_of_the_table(architecture):
        return (
            f"posenc does not serve {architecture}: {reader} of vLLM reads the table of cosines and sines "
            "without calling the rotary embedding, so every request would run unscaled"
        )
    fixed = fixed_rope_type(architecture)
    if fixed not in (None, rope_type):
        return (
            f"posenc does not serve {architecture} with rope_type {rope_type}: its model in vLLM rotates by {fixed}, "
            "whatever rope_parameters say"
        )
    if others := _other_bases(hf_text_config, architecture):
        return (
            f"posenc does not serve {architecture} with {others}: all layers must have the same rope_theta; a "
            "layer with another one sees only a part of each request and must not be scaled"
        )
    return None


def reason_against_turning(hf_text_config: Any, architecture: str) -> str | None:
    """What a model lacks for re-rotation, worded to follow "re-rotation needs"; None if it lacks nothing."""
    if condition := condition_of_rotating(architecture):
        return (
            f"a model that rotates the keys of every layer, but {architecture} of vLLM rotates on the condition "
            f"`{condition}`"
        )
    before = getattr(hf_text_config, "qk_nope_head_dim", None)
    if before and mentions(architecture, "qk_rope_head_dim"):
        return (
            f"a model that rotates the first elements of every head, but {architecture} does not rotate the first "
            f"{before} (qk_nope_head_dim)"
        )
    return None


def caches_latents(hf_text_config: Any, architecture: str) -> bool:
    """Whether a model has multi-head latent attention. vLLM's own list of such models is not complete."""
    return getattr(hf_text_config, "kv_lora_rank", None) is not None and has_latent_attention(architecture)


def _other_bases(hf_text_config: Any, architecture: str) -> str | None:
    """The key, with its value, that gives some layers another base; None if all layers that rotate have one base.

    A base of 0 means that the layer does not rotate.
    """
    own = hf_text_config.rope_parameters.get("rope_theta")
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

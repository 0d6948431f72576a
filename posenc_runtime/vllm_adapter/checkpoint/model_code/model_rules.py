"""Reasons against scaling an architecture, from its source in vLLM and its configuration."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from posenc_runtime.vllm_adapter.checkpoint.model_code.decoders import (
    assumes,
    encoder_with_keys,
    rope_type_of_axes,
    rotary_class_that_is_not_replaced,
)
from posenc_runtime.vllm_adapter.checkpoint.model_code.definitions import definitions_in_transformers
from posenc_runtime.vllm_adapter.checkpoint.model_code.language_models import language_models
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import (
    fixed_rope_type,
    has_latent_attention,
    has_own_model,
    mentions,
    module_of,
    reader_of_the_table,
    sources,
)
from posenc_runtime.vllm_adapter.checkpoint.model_code.rope_parameters import scaled_rope_parameters

# Some models have keys for the bases of some layers: rope_local_theta, swa_rope_theta, swa_rope_parameters.
_BASES = re.compile(r"(theta|base_freq|rope_parameters)$")


def reason_against_scaling(hf_text_config: Any, architecture: str, *, is_scaled: bool = True) -> str | None:
    """Why requests of an architecture would not all run at their scales, and what to do; None if they do.

    Args:
        hf_text_config: a configuration with ``rope_parameters``.
        is_scaled: False where vLLM's own rotary embeddings stay, so that a model may read their tables itself.
    """
    for name in (architecture, *language_models(architecture, hf_text_config)):
        if refusal := refusal_of(name, hf_text_config, is_scaled=is_scaled):
            return f"posenc does not serve {refusal.what}: {refusal.why}. {refusal.advice}"
    return None


@dataclasses.dataclass(frozen=True)
class Refusal:
    """An architecture that is not scaled.

    Attributes:
        what: the architecture, with what in its configuration is refused.
        why: a clause.
        advice: a sentence.
    """

    what: str
    why: str
    advice: str = "Serve it with vLLM, without posenc"


def refusal_of(architecture: str, hf_text_config: Any = None, *, is_scaled: bool = True) -> Refusal | None:
    """Why a model is not scaled; None if it is, as far as its source tells.

    Args:
        hf_text_config: None for what holds for every checkpoint of the architecture.
        is_scaled: as in ``reason_against_scaling``.
    """
    if not has_own_model(architecture):  # it runs on vLLM's Transformers backend, whose rotary embedding is one class
        return _refusal_on_the_transformers_backend(architecture, hf_text_config)
    if next(sources(architecture), None) is None:
        return Refusal(
            architecture,
            f"posenc reads the source of its model in vLLM, {module_of(architecture)}, to find how it rotates, and "
            "cannot read it",
        )
    if is_scaled and (reader := reader_of_the_table(hf_text_config, architecture)):
        return Refusal(
            architecture,
            f"{reader} of vLLM reads the table of cosines and sines without calling the rotary embedding, so every "
            "request would run unscaled",
        )
    if name := rotary_class_that_is_not_replaced(architecture):
        return Refusal(architecture, f"it rotates by vLLM's {name}, which posenc does not scale")
    if (name := rope_type_of_axes(architecture)) and hf_text_config is not None and has_axes(hf_text_config):
        return Refusal(
            f"{architecture} with mrope_section",
            f"its model in vLLM then rotates by {name}, which posenc does not scale",
        )
    if assumes(architecture, "use_fope"):
        return Refusal(architecture, "it rotates by Fourier position embeddings (FoPE), which posenc does not scale")
    if encoder := encoder_with_keys(architecture):
        return Refusal(architecture, f"its {encoder} caches keys, too, and posenc scales only those of text")
    fixed = fixed_rope_type(architecture)
    if hf_text_config is not None and fixed not in (None, own := scaled_rope_parameters(hf_text_config)["rope_type"]):
        return Refusal(
            f"{architecture} with rope_type {own}",
            f"its model in vLLM rotates by {fixed}, whatever rope_parameters say",
            "Use the rope_parameters of the published checkpoint",
        )
    return None


def _refusal_on_the_transformers_backend(architecture: str, hf_text_config: Any) -> Refusal | None:
    if hf_text_config is None:
        refused = any("mrope_section" in ast.unparse(each.node) for each in definitions_in_transformers(architecture))
    else:
        refused = has_axes(hf_text_config)
    if refused:
        return Refusal(
            architecture,
            "its tokens have positions on several axes (M-RoPE), and vLLM runs it on its Transformers backend, where "
            "posenc scales only one axis",
        )
    return None


def has_axes(hf_text_config: Any) -> bool:
    """Whether tokens have positions on several axes (M-RoPE)."""
    return "mrope_section" in scaled_rope_parameters(hf_text_config)


def caches_latents(hf_text_config: Any, architecture: str) -> bool:
    """Whether a model has multi-head latent attention. vLLM's own list of such models is not complete."""
    names = (architecture, *language_models(architecture, hf_text_config))
    return getattr(hf_text_config, "kv_lora_rank", None) is not None and any(map(has_latent_attention, names))


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

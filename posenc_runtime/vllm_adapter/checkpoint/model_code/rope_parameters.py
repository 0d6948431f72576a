"""Which of a checkpoint's rotary embeddings a deployment scales, by the checkpoint's own configuration.

Layers that see a part of the request, whatever its length, may have a rotary embedding of their own, which stays as
trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_runtime.vllm_adapter.contract.errors import Unsupported

# Plain RoPE whose slow pairs do not rotate (Gemma 4): its other pairs are scaled like plain RoPE's.
PROPORTIONAL = "proportional"
SEES_ALL = "full_attention"
# What vLLM's models write into an engine's configuration where a checkpoint says yarn.
_OF_DEEPSEEK = ("deepseek_yarn", "deepseek_llama_scaling")


def own_rope_parameters(hf_text_config: Any) -> dict[str, Any] | None:
    """A configuration's ``rope_parameters``; None if it has none.

    GPT-J and ChatGLM say in keys of their own what they rotate. Of these, it is what their code in vLLM makes.
    """
    if stated := getattr(hf_text_config, "rope_parameters", None):
        return dict(stated)
    partial = None
    if (rotary_dim := getattr(hf_text_config, "rotary_dim", None)) is not None:
        partial = rotary_dim / (hf_text_config.hidden_size // hf_text_config.num_attention_heads)
    elif hasattr(hf_text_config, "original_rope"):
        partial = 0.5
    if partial is None:
        return None
    rope_theta = 10000.0 * getattr(hf_text_config, "rope_ratio", 1.0)
    return {"rope_type": "default", "rope_theta": rope_theta, "partial_rotary_factor": partial}


def scaled_rope_parameters(hf_text_config: Any) -> dict[str, Any]:
    """The rope parameters of the layers that see the whole request, flat, with one number as ``rope_theta``.

    Args:
        hf_text_config: a configuration with ``rope_parameters``, or with keys that say the same.

    Raises:
        Unsupported: when it has several sets of them, and none for ``full_attention``.
    """
    rope_parameters = own_rope_parameters(hf_text_config) or {}
    if _is_nested(rope_parameters):
        if len(rope_parameters) > 1 and SEES_ALL not in rope_parameters:
            raise Unsupported(
                f"rope_parameters must have a set for {SEES_ALL}, which is scaled, got one for each of "
                f"{', '.join(sorted(rope_parameters))}"
            )
        rope_parameters = rope_parameters.get(SEES_ALL) or next(iter(rope_parameters.values()))
    of_layer = _first_layer_that_sees_all(hf_text_config)
    found = {
        key: value[of_layer] if key in ("rope_theta", "partial_rotary_factor") and _is_list(value) else value
        for key, value in rope_parameters.items()
    }
    if partial := getattr(hf_text_config, "partial_rotary_factors", None):  # Step 3.5
        found["partial_rotary_factor"] = partial[of_layer]
    if found["rope_type"] in _OF_DEEPSEEK:
        found["rope_type"] = "yarn"
    return found


def head_dim(hf_text_config: Any) -> int:
    """Width of the heads of the layers that see the whole request."""
    if getattr(hf_text_config, "is_heterogeneous", False):  # Gemma 4
        hf_text_config = hf_text_config.per_layer_config[_first_layer_that_sees_all(hf_text_config)]
    stated = getattr(hf_text_config, "global_head_dim", None) or getattr(hf_text_config, "head_dim", None)
    return int(stated or hf_text_config.hidden_size // hf_text_config.num_attention_heads)


def has_several(hf_text_config: Any) -> bool:
    """Whether ``rope_parameters`` hold different rotary embeddings for different layers."""
    rope_parameters = own_rope_parameters(hf_text_config) or {}
    if _is_nested(rope_parameters):
        sets = list(rope_parameters.values())
        return any(each != sets[0] for each in sets)
    return any(_is_list(rope_parameters.get(key)) for key in ("rope_theta", "partial_rotary_factor"))


def _is_nested(rope_parameters: Mapping[str, Any]) -> bool:
    return "rope_type" not in rope_parameters and all(isinstance(each, Mapping) for each in rope_parameters.values())


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _first_layer_that_sees_all(hf_text_config: Any) -> int:
    layer_types = getattr(hf_text_config, "layer_types", None) or ()
    return layer_types.index(SEES_ALL) if SEES_ALL in layer_types else 0

"""Which checkpoints can be scaled, and by which methods, according to their own configuration."""

from __future__ import annotations

from typing import Any

from posenc_runtime.encodings.methods import turns_queries
from posenc_runtime.encodings.scaling import available, method, own_rope_types
from posenc_runtime.vllm_adapter.checkpoint.attention_needs import has_alibi
from posenc_runtime.vllm_adapter.checkpoint.model_code.decoders import may_rotate
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_rules import reason_against_scaling
from posenc_runtime.vllm_adapter.checkpoint.model_code.rope_parameters import (
    PROPORTIONAL,
    own_rope_parameters,
    scaled_rope_parameters,
)
from posenc_runtime.vllm_adapter.checkpoint.model_code.rotated_distances import needs_no_scale
from posenc_runtime.vllm_adapter.contract.errors import Unsupported

# Rotations by one angle for each pair and position, which stay as they are where queries turn.
_KEPT = ("default", "linear", "llama3", "longrope", "yarn")


def refuse_method(rope_type: str, own: str) -> None:
    """Check that a method is made for a checkpoint's own rotation.

    Args:
        own: the checkpoint's own ``rope_type``.

    Raises:
        Unsupported: when the method is made for another; the message names both rope types.
    """
    made_for = _KEPT if turns_queries(rope_type) else method(rope_type).own_rope_types
    if own not in made_for:
        raise Unsupported(
            f"rope_type {rope_type} is for checkpoints whose own rope_type is {' or '.join(made_for)}, but this one's "
            f"is {own}: choose one of {', '.join(name for name in available() if own in method(name).own_rope_types)}"
        )


def rotates(hf_text_config: Any, architectures: list[str]) -> bool:
    """Whether a checkpoint's model has rotary embeddings, by its configuration and by its source in vLLM.

    Falcon's configuration has ``rope_parameters`` even with ALiBi, but then its layers only use ALiBi. Nemotron 3's has
    a ``rope_theta``, which its model does not read.
    """
    return _missing_rotation(hf_text_config, architectures) is None


def _missing_rotation(hf_text_config: Any, architectures: list[str]) -> str | None:
    """What shows that a model has no rotary embeddings; None if it may have some."""
    if has_alibi(hf_text_config):
        return f"the configuration of {', '.join(architectures)} has ALiBi"
    if own_rope_parameters(hf_text_config) is None:
        return f"the configuration of {', '.join(architectures)} has no rope_parameters"
    if architectures and not any(map(may_rotate, architectures)):
        return f"{', '.join(architectures)} has none in vLLM, whatever its configuration says"
    return None


def reason_for_scale_1_alone(hf_text_config: Any, architectures: list[str], trained: int | None) -> str | None:
    """Why a checkpoint's rotary embeddings have to stay vLLM's own, although it is served: at scale 1. Decision 70.

    Its model reads their tables itself, and no distance that it rotates grows past the trained length.

    Args:
        trained: tokens; None where nobody says it.

    Returns:
        None where it can be scaled, or is not served at all.
    """
    for architecture in architectures:
        reason = reason_against_scaling(hf_text_config, architecture)
        if reason and needs_no_scale(architecture, hf_text_config, trained):
            return reason
    return None


def refuse_checkpoint(hf_text_config: Any, architectures: list[str], *, is_scaled: bool = True) -> None:
    """Check what a checkpoint's own configuration says.

    Args:
        is_scaled: False where vLLM's own rotary embeddings stay.

    Raises:
        Unsupported: when it cannot be scaled; the message names the architecture or the rope type, and the reason.
    """
    if missing := _missing_rotation(hf_text_config, architectures):
        raise Unsupported(f"scaling needs a model with rotary embeddings, but {missing}")
    rope_parameters = scaled_rope_parameters(hf_text_config)
    rope_type = rope_parameters["rope_type"]
    if rope_type not in (*own_rope_types(), PROPORTIONAL):
        raise Unsupported(
            f"posenc scales checkpoints whose own rope_type is one of {', '.join(own_rope_types())}, got {rope_type}"
        )
    for key in ("use_fope", "xdrope_section"):
        if rope_parameters.get(key):
            raise Unsupported(
                f"posenc does not scale rope_parameters with {key}, got {rope_parameters[key]}, because no test "
                "shows that every key gets its request's scale: serve it with vLLM, without posenc"
            )
    if (chunks := getattr(hf_text_config, "dual_chunk_attention_config", None)) is not None:
        raise Unsupported(
            f"posenc does not scale checkpoints with dual_chunk_attention_config, got {chunks}: their queries are "
            "rotated several times, by positions within chunks. Set rope_type to auto, or hf_overrides to "
            "{dual_chunk_attention_config: null}, and original_max_position_embeddings to the trained length"
        )
    for architecture in architectures:
        if reason := reason_against_scaling(hf_text_config, architecture, is_scaled=is_scaled):
            raise Unsupported(reason)

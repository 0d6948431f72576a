"""Turns the sections into a deployment and a choice of attention; the checkpoint fills in what they leave out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from posenc_runtime.encodings.methods import turns_queries
from posenc_runtime.encodings.read_time.dual_chunk import DualChunk
from posenc_runtime.kv.deployment import UNROTATED, Deployment
from posenc_runtime.kv.scales import reach
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint, refuse_another
from posenc_runtime.vllm_adapter.checkpoint.scalable_checkpoints import refuse_method
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice, reason_against_backend
from posenc_runtime.vllm_adapter.contract.names import FIT_INTO_MEMORY
from posenc_runtime.vllm_adapter.settings.derivation import derive
from posenc_runtime.vllm_adapter.settings.section import AUTO, AttentionSettings, ScalingSettings, SettingRefused

# The longest request, where queries turn and nobody says it: in trained lengths, as far as that was measured, and in
# tokens, as far as phases were. The rotary table has a row for each token before anybody knows what the cache holds.
_MOST_LENGTHS = 32
_MOST_TOKENS = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completed:
    """The sections, completed from the checkpoint.

    Attributes:
        auto_reason: why ``rope_type: auto`` stands for this method and these scales; None where the settings name a
            method, or the model has no rotary embeddings.
        max_model_len: vLLM's argument: the longest request, tokens; ``FIT_INTO_MEMORY`` where no length is given, and
            ``auto`` chose the scales or there are none.
    """

    deployment: Deployment
    attention: AttentionChoice
    auto_reason: str | None
    max_model_len: int


def complete(
    scaling: ScalingSettings,
    attention: AttentionSettings,
    checkpoint: Checkpoint | None,
    *,
    model: str,
    max_model_len: int | None = None,
    engine: Mapping[str, Any] | None = None,
) -> Completed:
    """Complete the sections, and check them against each other and the checkpoint.

    Args:
        checkpoint: None where it cannot be read; the settings then have to say the trained length.
        model: its name, for refusals.
        max_model_len: longest request, tokens; what the largest scale reaches when None.
        engine: vLLM's engine arguments by name.

    Raises:
        SettingRefused: when two settings contradict each other, nobody knows the trained length, or the checkpoint's
            layers cannot have the attention that is asked for.
    """
    auto_reason = None
    if checkpoint is not None and checkpoint.spec is None:
        deployment = _unrotated(scaling, checkpoint, model, max_model_len)
    else:
        if not scaling.is_complete:
            auto = derive(scaling, checkpoint, model, max_model_len)
            scaling, auto_reason = auto.scaling, auto.reason
        deployment = _rotated(scaling, checkpoint, model, max_model_len, engine or {})
        if checkpoint is not None and checkpoint.scale_1_alone is not None:
            deployment = _left_to_vllm(deployment, checkpoint, checkpoint.scale_1_alone)
    fits_into_memory = (auto_reason is not None or deployment.turns_queries) and max_model_len is None
    return Completed(
        deployment=deployment,
        attention=_attention(attention, checkpoint),
        auto_reason=auto_reason,
        max_model_len=FIT_INTO_MEMORY if fits_into_memory else deployment.max_model_len,
    )


def _rotated(
    scaling: ScalingSettings,
    checkpoint: Checkpoint | None,
    model: str,
    max_model_len: int | None,
    engine: Mapping[str, Any],
) -> Deployment:
    """The deployment of a model with rotary embeddings.

    Args:
        scaling: with the name of a method, and with scales.

    Raises:
        SettingRefused: when two settings contradict each other, or nobody knows the trained length.
    """
    trained = scaling.original_max_position_embeddings
    if trained is None and checkpoint is not None:
        turns = turns_queries(scaling.rope_type)
        trained = checkpoint.longest_kept if turns else checkpoint.max_position_embeddings
    if trained is None:
        reason = "is not read" if checkpoint is None else "does not have it"
        raise SettingRefused(
            "scaling.original_max_position_embeddings: must be given, because the configuration of model "
            f"{model!r} {reason}"
        )
    if turns_queries(scaling.rope_type):
        return _turning_queries(scaling, checkpoint, trained, max_model_len)
    if checkpoint is not None and checkpoint.dual_chunk is not None:
        raise SettingRefused(
            "scaling.rope_type: must be auto, dual_chunk or rerope for a checkpoint with dual_chunk_attention_config, "
            f"got {scaling.rope_type}: set it to auto. To scale the checkpoint without its chunks, set "
            "engine.hf_overrides to {dual_chunk_attention_config: null}, and original_max_position_embeddings to the "
            "trained length"
        )
    parameters = scaling.parameters
    if checkpoint is not None and checkpoint.rope_type == scaling.rope_type:
        parameters = {**checkpoint.parameters, **parameters}
    spec = None
    if checkpoint is not None and checkpoint.spec is not None:
        spec = dataclasses.replace(checkpoint.spec, original_max_position_embeddings=trained)
    try:
        if checkpoint is not None and spec is not None:
            refuse_method(scaling.rope_type, checkpoint.rope_type)
            # Before the scales are looked at: a wrong trained length makes right scales look too small.
            refuse_another(checkpoint, scaling.rope_type, parameters, trained)
        deployment = Deployment(
            rope_type=scaling.rope_type,
            parameters=parameters,
            scales=tuple(float(scale) for scale in scaling.scales),
            original_max_position_embeddings=trained,
            max_model_len=max_model_len or _reach(scaling.scales, trained),
            headroom_tokens=scaling.headroom_tokens,
            on_crossing=scaling.on_crossing,
            rerotate_budget_tokens=scaling.rerotate_budget_tokens,
            prefix_reuse=scaling.prefix_reuse,
            rope_theta=scaling.rope_theta,
            allow_beyond_trained=scaling.allow_beyond_trained or _reaches_further(scaling, checkpoint, trained),
        )
        if spec is not None:
            deployment.check_rotations(spec)
    except ValueError as error:
        raise SettingRefused(f"scaling.{error}") from None
    if checkpoint is not None:
        _refuse_disabled_window(engine, checkpoint, deployment.max_model_len)
    return deployment


def _turning_queries(
    scaling: ScalingSettings, checkpoint: Checkpoint | None, trained: int, max_model_len: int | None
) -> Deployment:
    """The deployment of a method that turns queries when they read keys.

    Raises:
        SettingRefused: when the parameters do not fit the checkpoint, or its rotation cannot be kept.
    """
    parameters, chunked_length = scaling.parameters, None
    if checkpoint is not None and checkpoint.dual_chunk is not None:
        chunked_length = checkpoint.chunked_length
        if scaling.rope_type == DualChunk.name:
            parameters = {**checkpoint.dual_chunk, **parameters}
    try:
        if checkpoint is not None:
            refuse_method(scaling.rope_type, checkpoint.rope_type)
            longest = checkpoint.longest_kept
            if longest is not None and trained > longest:
                raise ValueError(
                    f"original_max_position_embeddings: must not exceed the checkpoint's trained length {longest}, got "
                    f"{trained}: leave it out, or give {longest} or less"
                )
        return Deployment(
            rope_type=scaling.rope_type,
            parameters=parameters,
            original_max_position_embeddings=trained,
            max_model_len=max_model_len or chunked_length or _longest(trained),
        )
    except ValueError as error:
        raise SettingRefused(f"scaling.{error}") from None


def _longest(trained: int) -> int:
    return max(min(_MOST_LENGTHS * trained, _MOST_TOKENS), trained)


def _left_to_vllm(asked: Deployment, checkpoint: Checkpoint, reason: str) -> Deployment:
    """The deployment of a model whose rotary embeddings stay vLLM's own: it needs no other scale than 1. Decision 70.

    Raises:
        SettingRefused: when the settings ask for another.
    """
    scales = asked.turns_queries or len(asked.scales) > 1
    if scales or not checkpoint.needs_no_scale(asked.original_max_position_embeddings):
        raise SettingRefused(f"model: {reason}, or leave the section scaling out: at scale 1 it is served")
    return dataclasses.replace(asked, rope_type=UNROTATED, parameters={}, on_crossing="pin", prefix_reuse="exact")


def _reaches_further(scaling: ScalingSettings, checkpoint: Checkpoint | None, trained: int) -> bool:
    """Whether scale 1 alone covers lengths past the trained one. Decision 70."""
    return checkpoint is not None and len(scaling.scales) == 1 and checkpoint.needs_no_scale(trained)


def _refuse_disabled_window(engine: Mapping[str, Any], checkpoint: Checkpoint, max_model_len: int) -> None:
    """Refuse ``disable_sliding_window`` where requests may be longer than the window that the model was trained with.

    Without its window, a layer attends as it was trained only while the request fits into the window. vLLM checks that,
    but not where it is told to accept lengths past the trained one, as we tell it.

    Raises:
        SettingRefused: when requests may be longer.
    """
    window = checkpoint.sliding_window
    if engine.get("disable_sliding_window") and window is not None and max_model_len > window:
        raise SettingRefused(
            f"engine.disable_sliding_window: must be false where max_model_len is above {window}, the window that "
            f"{checkpoint.architecture} was trained with, got true and max_model_len {max_model_len}: without its "
            "window, a layer attends as it was trained only while a request fits into it. Lower max_model_len, or keep "
            "the window"
        )


def _attention(attention: AttentionSettings, checkpoint: Checkpoint | None) -> AttentionChoice:
    """Which attention the layers get.

    Raises:
        SettingRefused: when the checkpoint's layers cannot have what is asked for.
    """
    needs = "stock" if checkpoint is None else checkpoint.attention
    if checkpoint is not None and (refusal := reason_against_backend(attention.backend, needs)):
        raise SettingRefused(f"attention.backend: {refusal}, got {attention.backend!r}")
    return AttentionChoice(**attention.model_dump(), needs=needs)


def _reach(scales: list[float], trained: int) -> int:
    """The longest request at the largest scale, tokens; 1 where ``Deployment`` will refuse the scales."""
    largest = max(scales, default=0.0)
    return max(reach(largest, trained), 1) if math.isfinite(largest) else 1


def _unrotated(scaling: ScalingSettings, checkpoint: Checkpoint, model: str, max_model_len: int | None) -> Deployment:
    """The deployment of a model without rotary embeddings: nothing is scaled, and all else is served.

    Raises:
        SettingRefused: when scaling is asked for, nobody says how long requests may be, or they may be longer than
            there are positions.
    """
    asked = scaling.model_fields_set - {"headroom_tokens"}
    if scaling.rope_type == AUTO:
        asked -= {"rope_type"}
    if not scaling.scales:
        asked -= {"scales"}
    if asked:
        raise SettingRefused(
            f"scaling.{min(asked)}: must not be given, because {checkpoint.architecture} has no rotary embeddings to "
            "scale: leave the section out"
        )
    longest = max_model_len or checkpoint.max_position_embeddings
    if longest is None:
        raise SettingRefused(
            f"max_model_len: must be given, because the configuration of model {model!r} does not say how "
            "long its requests may be"
        )
    if checkpoint.furthest is not None and longest > checkpoint.furthest:
        raise SettingRefused(
            f"max_model_len: must be at most {checkpoint.furthest} for this {checkpoint.architecture}, got {longest}: "
            "there are no positions past it"
        )
    return Deployment(
        rope_type=UNROTATED,
        original_max_position_embeddings=checkpoint.max_position_embeddings or longest,
        max_model_len=longest,
        headroom_tokens=scaling.headroom_tokens,
        on_crossing="pin",
        allow_beyond_trained=True,
    )

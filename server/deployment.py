"""From settings to a deployment: the checkpoint fills in what the file leaves out."""

from __future__ import annotations

import dataclasses

from posenc_runtime.kv.deployment import UNROTATED, Deployment
from posenc_runtime.vllm_adapter.attention.choice import AttentionChoice
from posenc_runtime.vllm_adapter.checkpoint import Checkpoint, UnreadableCheckpoint, read_checkpoint
from posenc_runtime.vllm_adapter.support import Unsupported, refuse_method
from server.load import ConfigurationError
from server.settings import Settings


def checkpoint_of(settings: Settings) -> Checkpoint | None:
    """The checkpoint's own configuration, None where it cannot be read.

    Raises:
        ConfigurationError: when it was read and cannot be scaled.
    """
    try:
        return read_checkpoint(settings.model, settings.engine)
    except UnreadableCheckpoint:
        return None
    except Unsupported as error:
        raise ConfigurationError(f"model: {error}") from None


def deployment_of(settings: Settings, checkpoint: Checkpoint | None) -> Deployment:
    """Complete the settings, and check them against each other.

    Raises:
        ConfigurationError: when two contradict each other, or the trained length is known to nobody.
    """
    scaling = settings.scaling
    if checkpoint is not None and checkpoint.spec is None:
        return _unrotated(settings, checkpoint)
    trained = scaling.original_max_position_embeddings
    if trained is None:
        if checkpoint is None or checkpoint.max_position_embeddings is None:
            raise ConfigurationError(
                "scaling.original_max_position_embeddings: must be given, because the configuration of model "
                f"{settings.model!r} cannot be read, or does not say it"
            )
        trained = checkpoint.max_position_embeddings
    elif checkpoint is not None and trained > (checkpoint.max_position_embeddings or trained):
        raise ConfigurationError(
            "scaling.original_max_position_embeddings: must not exceed the checkpoint's max_position_embeddings "
            f"{checkpoint.max_position_embeddings}, got {trained}"
        )
    parameters = scaling.parameters
    if checkpoint is not None and checkpoint.rope_type == scaling.rope_type:
        parameters = {**checkpoint.parameters, **parameters}
    try:
        deployment = Deployment(
            rope_type=scaling.rope_type,
            parameters=parameters,
            scales=tuple(float(scale) for scale in scaling.scales),
            original_max_position_embeddings=trained,
            max_model_len=settings.max_model_len or max(int(scaling.scales[-1] * trained), 1) if scaling.scales else 1,
            headroom_tokens=scaling.headroom_tokens,
            on_crossing=scaling.on_crossing,
            rerotate_budget_tokens=scaling.rerotate_budget_tokens,
            prefix_reuse=scaling.prefix_reuse,
            rope_theta=scaling.rope_theta,
            allow_beyond_trained=scaling.allow_beyond_trained,
        )
        if checkpoint is not None and checkpoint.spec is not None:
            refuse_method(scaling.rope_type, checkpoint.rope_type)
            spec = dataclasses.replace(checkpoint.spec, original_max_position_embeddings=trained)
            for scale in deployment.scales:  # a method may refuse the checkpoint's shape
                deployment.method.frequencies(spec, scale)
    except ValueError as error:
        raise ConfigurationError(f"scaling.{error}") from None
    return deployment


def attention_of(settings: Settings, checkpoint: Checkpoint | None) -> AttentionChoice:
    """Which attention layers get."""
    needs = "stock" if checkpoint is None else checkpoint.attention
    return AttentionChoice(**settings.attention.model_dump(), needs=needs)


def _unrotated(settings: Settings, checkpoint: Checkpoint) -> Deployment:
    """The deployment of a model without rotary embeddings: everything but scaling.

    Raises:
        ConfigurationError: when scaling is asked for, nobody says how long requests may be, or they may be longer than
            there are positions.
    """
    asked = settings.scaling.model_fields_set - {"headroom_tokens"}
    if asked:
        raise ConfigurationError(
            f"scaling.{min(asked)}: must not be given, because {checkpoint.architecture} has no rotary embeddings to "
            "scale: leave the section out"
        )
    longest = settings.max_model_len or checkpoint.max_position_embeddings
    if longest is None:
        raise ConfigurationError(
            f"max_model_len: must be given, because the configuration of model {settings.model!r} does not say how "
            "long its requests may be"
        )
    if checkpoint.furthest is not None and longest > checkpoint.furthest:
        raise ConfigurationError(
            f"max_model_len: must be at most {checkpoint.furthest} for this {checkpoint.architecture}, got {longest}: "
            "there are no positions past it"
        )
    return Deployment(
        rope_type=UNROTATED,
        original_max_position_embeddings=checkpoint.max_position_embeddings or longest,
        max_model_len=longest,
        headroom_tokens=settings.scaling.headroom_tokens,
        on_crossing="pin",
        allow_beyond_trained=True,
    )

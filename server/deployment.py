"""From settings to a deployment: the checkpoint fills in what the file leaves out."""

from __future__ import annotations

import dataclasses
import math
import pathlib

from posenc_runtime.kv.deployment import UNROTATED, Deployment
from posenc_runtime.kv.scales import reach
from posenc_runtime.vllm_adapter.attention.choice import AttentionChoice, reason_against_backend
from posenc_runtime.vllm_adapter.checkpoint import Checkpoint, UnreadableCheckpoint, read_checkpoint, refuse_another
from posenc_runtime.vllm_adapter.support import Unsupported, refuse_method
from server.load import ConfigurationError
from server.settings import Settings


class UnreadableModel(ConfigurationError):
    """The configuration of a model on a hub cannot be read; the settings themselves may be right."""


def checkpoint_of(settings: Settings) -> Checkpoint:
    """The checkpoint's own configuration.

    Raises:
        UnreadableModel: when a hub does not give it.
        ConfigurationError: when there is no such folder, or none that holds it, or it was read and cannot be scaled.
    """
    is_path = settings.model.startswith((".", "/", "~"))
    folder = pathlib.Path(settings.model)
    if is_path and not folder.is_dir():
        reason = "write ~ out, it is not expanded" if settings.model.startswith("~") else "there is no such folder"
        raise ConfigurationError(f"model: must be a folder or a name on a hub, got {settings.model!r}: {reason}")
    try:
        return read_checkpoint(settings.model, settings.engine)
    except UnreadableCheckpoint as error:
        if folder.is_dir():
            raise ConfigurationError(f"model: {error}") from None
        raise UnreadableModel(
            f"model: {error}; check the name, HF_TOKEN or engine.hf_token, and the network, or give a folder "
            "that has it as engine.hf_config_path"
        ) from None
    except Unsupported as error:
        raise ConfigurationError(f"model: {error}") from None


def deployment_of(settings: Settings, checkpoint: Checkpoint | None) -> Deployment:
    """Complete the settings, and check them against each other.

    Args:
        checkpoint: None where it cannot be read; the settings then have to say the trained length.

    Raises:
        ConfigurationError: when two contradict each other, or the trained length is known to nobody.
    """
    scaling = settings.scaling
    if checkpoint is not None and checkpoint.spec is None:
        return _unrotated(settings, checkpoint)
    trained = scaling.original_max_position_embeddings
    if trained is None:
        if checkpoint is None or checkpoint.max_position_embeddings is None:
            reason = "is not read" if checkpoint is None else "does not say it"
            raise ConfigurationError(
                "scaling.original_max_position_embeddings: must be given, because the configuration of model "
                f"{settings.model!r} {reason}"
            )
        trained = checkpoint.max_position_embeddings
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
            max_model_len=settings.max_model_len or _reach(scaling.scales, trained),
            headroom_tokens=scaling.headroom_tokens,
            on_crossing=scaling.on_crossing,
            rerotate_budget_tokens=scaling.rerotate_budget_tokens,
            prefix_reuse=scaling.prefix_reuse,
            rope_theta=scaling.rope_theta,
            allow_beyond_trained=scaling.allow_beyond_trained,
        )
        if spec is not None:
            deployment.check_rotations(spec)
    except ValueError as error:
        raise ConfigurationError(f"scaling.{error}") from None
    if checkpoint is not None:
        _refuse_disabled_window(settings, checkpoint, deployment.max_model_len)
    return deployment


def _refuse_disabled_window(settings: Settings, checkpoint: Checkpoint, max_model_len: int) -> None:
    """Without its window a layer attends as it was trained as long as requests fit into it.

    vLLM checks that, but not where it is told to take lengths past the trained one, as it is here.
    """
    window = checkpoint.sliding_window
    if settings.engine.get("disable_sliding_window") and window is not None and max_model_len > window:
        raise ConfigurationError(
            f"engine.disable_sliding_window: must be false where max_model_len is above {window}, the window that "
            f"{checkpoint.architecture} was trained with, got true and {max_model_len}: lower max_model_len, or leave "
            "the window and set scaling.on_crossing to recompute or pin"
        )


def _reach(scales: list[float], trained: int) -> int:
    """What the largest scale reaches, tokens; 1 where a deployment will refuse the scales."""
    largest = max(scales, default=0.0)
    return max(reach(largest, trained), 1) if math.isfinite(largest) else 1


def world_size_of(settings: Settings) -> int:
    """Workers on this machine, which vLLM is told before it is imported and can check anything.

    Raises:
        ConfigurationError: when a size is no number of workers.
    """
    world_size = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        size = settings.engine.get(name, 1)
        if type(size) is not int or size < 1:
            raise ConfigurationError(f"engine.{name}: must be a whole number of at least 1, got {size!r}")
        world_size *= size
    return world_size


def attention_of(settings: Settings, checkpoint: Checkpoint | None) -> AttentionChoice:
    """Which attention layers get.

    Raises:
        ConfigurationError: when the checkpoint's layers cannot have what is asked for.
    """
    needs = "stock" if checkpoint is None else checkpoint.attention
    backend = settings.attention.backend
    if checkpoint is not None and (refusal := reason_against_backend(backend, needs)):
        raise ConfigurationError(f"attention.backend: {refusal}, got {backend!r}")
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

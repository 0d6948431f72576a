"""From a deployment's settings to what its engine gets."""

from __future__ import annotations

import pathlib

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.attention.choice import AttentionChoice
from posenc_runtime.vllm_adapter.checkpoint import Checkpoint, UnreadableCheckpoint, read_checkpoint
from posenc_runtime.vllm_adapter.completion import attention_from, deployment_from
from posenc_runtime.vllm_adapter.section import SettingRefused
from posenc_runtime.vllm_adapter.support import Unsupported
from server.settings import Settings


class UnreadableModel(SettingRefused):
    """The configuration of a model on a hub cannot be read; the settings themselves may be right."""


def checkpoint_of(settings: Settings) -> Checkpoint:
    """The checkpoint's own configuration.

    Raises:
        UnreadableModel: when a hub does not give it.
        SettingRefused: when there is no such folder, or none that holds it, or it was read and cannot be scaled.
    """
    is_path = settings.model.startswith((".", "/", "~"))
    folder = pathlib.Path(settings.model)
    if is_path and not folder.is_dir():
        reason = "write ~ out, it is not expanded" if settings.model.startswith("~") else "there is no such folder"
        raise SettingRefused(f"model: must be a folder or a name on a hub, got {settings.model!r}: {reason}")
    try:
        return read_checkpoint(settings.model, settings.engine)
    except UnreadableCheckpoint as error:
        if folder.is_dir():
            raise SettingRefused(f"model: {error}") from None
        raise UnreadableModel(
            f"model: {error}; check the name, HF_TOKEN or engine.hf_token, and the network, or give a folder "
            "that has it as engine.hf_config_path"
        ) from None
    except Unsupported as error:
        raise SettingRefused(f"model: {error}") from None


def deployment_of(settings: Settings, checkpoint: Checkpoint | None) -> Deployment:
    """What the settings and the checkpoint decide together.

    Raises:
        SettingRefused: when two contradict each other, or the trained length is known to nobody.
    """
    return deployment_from(
        settings.scaling,
        checkpoint,
        model=settings.model,
        max_model_len=settings.max_model_len,
        engine=settings.engine,
    )


def attention_of(settings: Settings, checkpoint: Checkpoint | None) -> AttentionChoice:
    """Which attention layers get.

    Raises:
        SettingRefused: when the checkpoint's layers cannot have what is asked for.
    """
    return attention_from(settings.attention, checkpoint)

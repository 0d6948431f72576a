"""The configuration of the checkpoint that settings name."""

from __future__ import annotations

from posenc_runtime.vllm_adapter.checkpoints.checkpoint import Checkpoint, read_checkpoint
from posenc_runtime.vllm_adapter.errors import Unsupported
from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from server.first_look import look, refused_if_unreadable
from server.settings import Settings


def checkpoint_of(settings: Settings) -> Checkpoint:
    """The checkpoint's own configuration.

    Raises:
        UnreadableModel: when a hub does not give it.
        SettingRefused: when there is no such folder, when the folder has no configuration, or when the checkpoint
            cannot be scaled.
    """
    place = look(settings).place
    try:
        with refused_if_unreadable(settings):
            return read_checkpoint(settings.model, settings.engine, place)
    except Unsupported as error:
        raise SettingRefused(f"model: {error}") from None

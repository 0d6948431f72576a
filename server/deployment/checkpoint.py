"""The checkpoint that settings name. A model that is not there is refused before vLLM is imported."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.checkpoint import config_file
from posenc_runtime.vllm_adapter.checkpoint.hub import Found, UnreadableCheckpoint
from posenc_runtime.vllm_adapter.checkpoint.weight_files import DamagedWeights, refuse_damaged
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from server.deployment.settings import Settings

if TYPE_CHECKING:
    from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint


def checkpoint_of(settings: Settings) -> Checkpoint:
    """The checkpoint's own configuration.

    Raises:
        UnreadableModel: when a hub does not give it.
        SettingRefused: when there is no such folder, when the folder has no configuration, or when the checkpoint
            cannot be scaled.
    """
    from posenc_runtime.vllm_adapter.checkpoint.checkpoint import read_checkpoint  # imports torch

    place = look(settings).place
    try:
        with refused_if_unreadable(settings):
            return read_checkpoint(settings.model, settings.engine, place)
    except Unsupported as error:
        raise SettingRefused(f"model: {error}") from None


class UnreadableModel(SettingRefused):
    """The configuration of a model on a hub cannot be read; the settings themselves may be right."""


def look(settings: Settings) -> Found:
    """Where vLLM is to read the checkpoint's configuration.

    Raises:
        UnreadableModel: when the hub does not give it, or cannot be reached.
        SettingRefused: when there is no such folder, or the folder has no configuration.
    """
    is_path = settings.model.startswith((".", "/", "~"))
    if is_path and not pathlib.Path(settings.model).is_dir():
        is_home = settings.model.startswith("~")
        reason = "write the whole path, because ~ is not expanded" if is_home else "there is no such folder"
        raise SettingRefused(f"model: must be a folder or a name on a hub, got {settings.model!r}: {reason}")
    with refused_if_unreadable(settings):
        return config_file.look(settings.model, settings.engine)


def look_at_weights(settings: Settings) -> None:
    """Check the files of the weights of a model in a folder; those of a hub are checked when they are downloaded.

    Raises:
        SettingRefused: when a file is missing or damaged.
    """
    folder = pathlib.Path(settings.model)
    if folder.is_dir():
        try:
            refuse_damaged(folder, settings.engine)
        except DamagedWeights as error:
            raise SettingRefused(f"model: {error}") from None


@contextlib.contextmanager
def refused_if_unreadable(settings: Settings) -> Iterator[None]:
    """Refuse the model where the checkpoint's configuration cannot be read.

    Raises:
        UnreadableModel: when the model is a name on a hub.
        SettingRefused: when the model is a folder.
    """
    try:
        yield
    except UnreadableCheckpoint as error:
        if pathlib.Path(settings.model).is_dir():
            raise SettingRefused(f"model: {error}") from None
        raise UnreadableModel(
            f"model: {error}; {error.advice}, or set engine.hf_config_path to a folder that has the configuration"
        ) from None

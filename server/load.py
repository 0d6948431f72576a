"""From a deployment's file to its settings: over the file the environment, over that ``--set``."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from posenc_runtime.vllm_adapter.wording import did_you_mean, rule_of
from server import packaged
from server.layers import UniqueKeysLoader, environment_layer, set_layer
from server.parameters import parameters_model
from server.settings import Settings


class ConfigurationError(ValueError):
    """A setting was refused: the message gives its path, the rule and the value, one line for each."""


def load(
    path: pathlib.Path, overrides: list[str] | None = None, environment: Mapping[str, str] = os.environ
) -> Settings:
    """Read a deployment's file and lay the environment and ``--set`` over it.

    Args:
        overrides: ``scaling.headroom_tokens=64``, the later ones winning.
        environment: ``POSENC_SCALING__HEADROOM_TOKENS=64``.

    Raises:
        ConfigurationError: when the file cannot be read or a setting is refused.
    """
    try:
        environment_values = environment_layer(environment, known=set(Settings.model_fields))
        layers = [_file_layer(path), environment_values, *map(set_layer, overrides or [])]
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    try:
        settings = _merged(layers)
    except ValidationError as error:
        raise ConfigurationError("\n".join(_explained(error, _rope_type(layers)))) from None
    try:
        settings.model = packaged.located(settings.model)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return settings


def _merged(layers: list[dict[str, Any]]) -> Settings:
    class Layered(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: Any, **__: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            # pydantic-settings lays the first source over the later ones
            return tuple(InitSettingsSource(settings_cls, init_kwargs=layer) for layer in reversed(layers))

    return Layered()


def _file_layer(path: pathlib.Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=UniqueKeysLoader)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: is not YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path}: must be a mapping of settings, got {type(values).__name__}")
    model = values.get("model")
    if isinstance(model, str) and model.startswith("."):
        values["model"] = str((path.parent / model).resolve())
    return values


def _rope_type(layers: list[dict[str, Any]]) -> str:
    """The method that is asked for, in settings that may be wrong."""
    sections = [layer.get("scaling") for layer in reversed(layers)]
    asked = [section["rope_type"] for section in sections if isinstance(section, dict) and "rope_type" in section]
    return str(asked[0]) if asked else "default"


def _explained(error: ValidationError, rope_type: str) -> list[str]:
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        cause = problem.get("ctx", {}).get("error")
        if cause is not None:
            lines.append(f"{path}.{cause}" if path else str(cause))
        elif problem["type"] == "extra_forbidden":
            lines.append(
                f"{path}: is not a known setting, got {problem['input']!r}{_hint(path, problem['input'], rope_type)}"
            )
        elif problem["type"] == "missing":
            lines.append(f"{path}: must be given")
        elif problem["type"] in ("model_type", "dict_type"):
            lines.append(f"{path}: must be a mapping of settings, got {_shown(problem['input'])}")
        else:
            lines.append(f"{path}: {rule_of(problem['msg'])}, got {problem['input']!r}")
    return lines


def _hint(path: str, value: Any, rope_type: str) -> str:
    """What somebody may have meant by a setting that is not known."""
    *sections, key = path.split(".")
    if path == "scaling.factor":  # fixed in Hugging Face's configurations; here every request has its own
        if rope_type == "default":
            return "; rope_type default does not scale, choose another"
        largest = f"{value:g}" if isinstance(value, int | float) and 1 < value < 1e6 else "4"
        return f"; scaling.scales says it for {rope_type}, as in [1, {largest}]"
    model: type[BaseModel] = Settings
    for section in sections:
        field = model.model_fields.get(section)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return ""
        model = field.annotation
    known = set(model.model_fields)
    if sections == ["scaling"]:
        known |= set(parameters_model(rope_type).model_fields)
    return did_you_mean(key, known)


def _shown(value: Any) -> str:
    return "nothing: leave the section out, or give it settings" if value is None else repr(value)

"""From a deployment's file to its settings: over the file the environment, over that ``--set``."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from server.layers import UniqueKeysLoader, environment_layer, set_layer
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
        return _merged(layers)
    except ValidationError as error:
        raise ConfigurationError("\n".join(_explained(error))) from None
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


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


def _explained(error: ValidationError) -> list[str]:
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, ValidationError):
            lines += [f"{path}.{line}" for line in _explained(cause)]
        elif cause is not None:
            lines.append(f"{path}.{cause}" if path else str(cause))
        elif problem["type"] == "extra_forbidden":
            lines.append(f"{path}: is not a known setting, got {problem['input']!r}")
        elif problem["type"] == "missing":
            lines.append(f"{path}: must be given")
        else:
            lines.append(f"{path}: {_rule(problem['msg'])}, got {problem['input']!r}")
    return lines


def _rule(message: str) -> str:
    return message.replace("Input should be", "must be")

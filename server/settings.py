"""Every setting of a deployment: one YAML file, over it the environment, over that ``--set``."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from posenc_runtime.encodings.scaling import available, method
from posenc_runtime.kv.deployment import OnCrossing
from server.layers import environment_layer, set_layer

_STRICT = ConfigDict(extra="forbid", strict=True)


class ConfigurationError(ValueError):
    """A setting was refused: the message gives its path, the rule and the value, one line for each."""


class ScalingSettings(BaseModel):
    """How requests past the trained length are rotated. Method parameters are keys of this section, too.

    Attributes:
        rope_type: the method: a file of ``posenc_runtime/encodings/scaling``.
        original_max_position_embeddings: trained length, tokens; the checkpoint's own when left out.
        scales: ascending, starting at 1; a request at scale s may grow to s times the trained length.
        headroom_tokens: new tokens that a request is admitted for when it does not say how many it wants.
        on_crossing: ``pin`` admits a request at the largest length that it may reach.
        rope_theta: base of the scaled frequencies; the checkpoint's own when left out.
        allow_beyond_trained: let ``default`` serve lengths past the trained one, for comparisons.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    rope_type: str = "default"
    original_max_position_embeddings: int | None = Field(default=None, ge=1)
    scales: list[float] = [1.0]
    headroom_tokens: int = Field(default=256, ge=1)
    on_crossing: OnCrossing = "pin"
    rope_theta: float | None = Field(default=None, gt=1)
    allow_beyond_trained: bool = False

    @model_validator(mode="after")
    def _method_parameters(self) -> Self:
        if self.rope_type not in available():
            raise ValueError(f"rope_type must be one of {', '.join(available())}, got {self.rope_type!r}")
        _parameters_model(self.rope_type).model_validate(self.parameters)
        method(self.rope_type)(**self.parameters)
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The method's own parameters, as given."""
        return dict(self.model_extra or {})


class HttpSettings(BaseModel):
    """Where the server listens. Any other key is a front-end argument of vLLM (``api_key``, ``chat_template``, ...)."""

    model_config = ConfigDict(extra="allow", strict=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)

    @property
    def arguments(self) -> dict[str, Any]:
        """vLLM's front-end arguments, as given."""
        return dict(self.model_extra or {})


class Settings(BaseSettings):
    """One deployment.

    Attributes:
        model: a folder or a name on a hub, anything that vLLM takes. A path that starts with a dot is relative to
            the file that says it.
        served_model_name: what clients call it; the model's own name when left out.
        max_model_len: longest request, tokens; what the largest scale reaches when left out.
        engine: any engine argument of vLLM.
    """

    model_config = SettingsConfigDict(extra="forbid", strict=True, protected_namespaces=())

    model: str
    served_model_name: str | None = None
    max_model_len: int | None = Field(default=None, ge=1)
    scaling: ScalingSettings = ScalingSettings()
    engine: dict[str, Any] = {}
    server: HttpSettings = HttpSettings()

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **_: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


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
    values = _file_layer(path)
    for layer in (environment_layer(environment, known=set(Settings.model_fields)), *map(set_layer, overrides or [])):
        values = _laid_over(values, layer)
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigurationError("\n".join(_explained(error))) from None


def _file_layer(path: pathlib.Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
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


def _laid_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        lower = result.get(key)
        result[key] = _laid_over(lower, value) if isinstance(lower, dict) and isinstance(value, dict) else value
    return result


def _parameters_model(rope_type: str) -> type[BaseModel]:
    """The method's dataclass as a strict pydantic model, so that its parameters are checked like all others."""
    import dataclasses
    import typing

    parameters: Any = method(rope_type)
    hints = typing.get_type_hints(parameters)
    fields: dict[str, Any] = {
        field.name: (hints[field.name], field.default) for field in dataclasses.fields(parameters)
    }
    return create_model(rope_type, __config__=_STRICT, **fields)


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

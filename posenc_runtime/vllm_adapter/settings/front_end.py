"""The sections ``access`` and ``limits``: who may ask the server for what, and how much. Checked strictly.

They travel to the API server in ``additional_config``, and are read there before the engine starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from posenc_runtime.vllm_adapter.hook import ACCESS_SECTION, LIMITS_SECTION
from posenc_runtime.vllm_adapter.settings.addresses import Address, is_address

RouteClass = Literal["open", "inference", "metrics", "administration"]


class AccessSettings(BaseModel):
    """Who may ask for what.

    Attributes:
        keys_file: a file with API keys, read anew when it changes; beside it, keys stand in the environment.
        metrics: who may read metrics: ``key``, whoever has a key, or everybody where there are no keys; ``open``,
            everybody; ``off``, nobody; or an address of their own, where everybody may.
        administration: who may administer the server: ``off``, nobody; ``key``, the administrators; or an address of
            its own, where the administrators may, and everybody where none are named.
        administrators: names of the keys that administration asks for.
        routes: classes of routes that Posenc does not know, or other classes for those that it knows.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    keys_file: str | None = Field(default=None, min_length=1)
    metrics: str = "key"
    administration: str = "off"
    administrators: list[str] = []
    routes: dict[str, RouteClass] = {}

    @field_validator("metrics", "administration", mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        """Undo that YAML 1.1 reads ``off`` as false."""
        return "off" if value is False else value

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        for name, words in (("metrics", ("key", "open", "off")), ("administration", ("key", "off"))):
            if (value := getattr(self, name)) not in words and not is_address(value):
                raise ValueError(
                    f"{name} must be {', '.join(words)}, or an address such as 127.0.0.1:9000, got {value!r}"
                )
        if not self.administrators and self._must_name_administrators():
            raise ValueError(
                "administrators must name the keys that administration asks for where administration is "
                f"{self.administration}, got none: name them, or administer at an address of this machine, such as "
                "127.0.0.1:9000"
            )
        return self

    def _must_name_administrators(self) -> bool:
        if is_address(self.administration):
            return not Address.of(self.administration).is_of_this_machine
        return self.administration != "off"


class LimitSettings(BaseModel):
    """How much one request, and all requests together, may ask for."""

    model_config = ConfigDict(extra="forbid", strict=True)


class FrontEndSettings(BaseModel):
    """Both sections."""

    model_config = ConfigDict(extra="forbid", strict=True)

    access: AccessSettings = Field(default_factory=AccessSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)

    def to_additional_config(self) -> dict[str, Any]:
        """What was set, as keys of vLLM's ``additional_config``; a section that says nothing is left out."""
        said = self.model_dump(mode="json", exclude_unset=True)
        return {_KEYS[name]: section for name, section in said.items() if section}

    @classmethod
    def of_additional_config(cls, additional: Mapping[str, Any] | None) -> Self:
        """The inverse of ``to_additional_config``; other keys are not looked at.

        Raises:
            ValidationError: when a section is refused.
        """
        given = additional or {}
        return cls.model_validate({name: given[key] for name, key in _KEYS.items() if key in given})


_KEYS = {"access": ACCESS_SECTION, "limits": LIMITS_SECTION}

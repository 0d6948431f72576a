"""The sections ``access``, ``limits`` and ``health``: who may ask the server for what, how much, and what the probes
of its health say. Checked strictly.

They travel to the API server in ``additional_config``, and are read there before the engine starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from posenc_runtime.vllm_adapter.contract.names import SECTION_KEYS
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
                "administrators must name the keys that may administer, where administration is "
                f"{self.administration}, got none: name them, or administer at an address of this machine, such as "
                "127.0.0.1:9000"
            )
        return self

    def _must_name_administrators(self) -> bool:
        if is_address(self.administration):
            return not Address.of(self.administration).is_of_this_machine
        return self.administration != "off"


class LimitSettings(BaseModel):
    """How much one request, and all requests together, may ask for. docs/configuration.md has each default's reason.

    Attributes:
        max_body_bytes: of a body.
        max_depth: objects and lists in each other.
        max_values: values in all lists and objects of a body.
        max_parts: texts, names of members, and objects and lists of a body; each of the last two counts twice.
        max_escapes: escapes and bytes of characters that are not ASCII in a body: text of these takes up to four times
            the memory when it is read. An escape of six bytes counts three times.
        max_messages: messages of a chat, or items of an input.
        max_content_parts: texts, images and the like in all messages of a request.
        max_prompts: prompts, conversations or items that one request is for.
        max_prompt_tokens: tokens of all prompts of a request that are given as ids.
        max_n: answers for each prompt.
        max_sequences: prompts times answers for each.
        max_output_tokens: of ``max_tokens`` and its synonyms; null leaves it to the served length.
        max_logprobs: of ``logprobs`` and its relatives; null leaves it to ``engine.max_logprobs``.
        max_stop_strings: of ``stop``, ``stop_sequences`` and ``bad_words``, each.
        max_constraint_bytes: of a schema, pattern, grammar or list of choices that an answer must fit, as JSON.
        max_list_items: in any other list of a request that is not of token ids.
        max_name_length: characters of names: the model's, the user's, a request's, a session's, a salt.
        max_requests_per_key: under way at once for each key; for all clients together where there are no keys.
        max_queued: sequences that wait while as many run as the engine has room for.
        max_bytes_in_flight: bodies of all requests under way.
        max_seconds: that a request may take; null for no limit.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    max_body_bytes: int = Field(default=32 * 2**20, ge=1024)
    max_depth: int = Field(default=100, ge=8, le=200)
    max_values: int = Field(default=1_100_000, ge=1)
    max_parts: int = Field(default=75_000, ge=1)
    max_escapes: int = Field(default=8 * 2**20, ge=0)
    max_messages: int = Field(default=5_000, ge=1)
    max_content_parts: int = Field(default=16_384, ge=1)
    max_prompts: int = Field(default=1_024, ge=1)
    max_prompt_tokens: int = Field(default=2**20, ge=1)
    max_n: int = Field(default=128, ge=1)
    max_sequences: int = Field(default=1_024, ge=1)
    max_output_tokens: int | None = Field(default=None, ge=1)
    max_logprobs: int | None = Field(default=None, ge=0)
    max_stop_strings: int = Field(default=256, ge=1)
    max_constraint_bytes: int = Field(default=65_536, ge=1)
    max_list_items: int = Field(default=4_096, ge=1)
    max_name_length: int = Field(default=1_024, ge=1)
    max_requests_per_key: int = Field(default=1_024, ge=1)
    max_queued: int = Field(default=4_096, ge=0)
    max_bytes_in_flight: int = Field(default=2**30, ge=1024)
    max_seconds: float | None = Field(default=None, gt=0)


class HealthSettings(BaseModel):
    """When the server counts as healthy.

    Attributes:
        stalled_seconds: for how long the engine may answer nothing and still count as ready. One step may take so long:
            a long prompt on a CPU takes half a minute.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    stalled_seconds: float = Field(default=60.0, gt=0)


class FrontEndSettings(BaseModel):
    """All of these sections."""

    model_config = ConfigDict(extra="forbid", strict=True)

    access: AccessSettings = Field(default_factory=AccessSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    health: HealthSettings = Field(default_factory=HealthSettings)

    def to_additional_config(self) -> dict[str, Any]:
        """What was set, as keys of vLLM's ``additional_config``; a section that says nothing is left out."""
        said = self.model_dump(mode="json", exclude_unset=True)
        return {SECTION_KEYS[name]: section for name, section in said.items() if section}

    @classmethod
    def of_additional_config(cls, additional: Mapping[str, Any] | None) -> Self:
        """The inverse of ``to_additional_config``; other keys are not looked at.

        Raises:
            ValidationError: when a section is refused.
        """
        given = additional or {}
        return cls.model_validate(
            {name: given[key] for name in cls.model_fields if (key := SECTION_KEYS[name]) in given}
        )

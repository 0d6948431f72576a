"""The sections ``scaling`` and ``attention``, of a deployment's file or of vLLM's flag, checked strictly."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, create_model, field_validator, model_validator
from pydantic_core import PydanticCustomError

from posenc_runtime.encodings.fields import fits, rule_of_type
from posenc_runtime.encodings.methods import available, method, turns_queries
from posenc_runtime.kv.deployment import Deployment, OnCrossing, PrefixReuse, refuse_contradictions
from posenc_runtime.kv.scales import refuse_scales
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice, Backend, FusedKeys, FusedRotary
from posenc_runtime.vllm_adapter.contract.errors import Refused, did_you_mean


def parameters_model(rope_type: str) -> type[BaseModel]:
    """A model with the fields of the method's dataclass, their types and their defaults; it refuses other keys.

    Raises:
        ValueError: when no method has that name.
    """
    parameters: Any = method(rope_type)
    hints = typing.get_type_hints(parameters)
    fields: dict[str, Any] = {
        field.name: (_checked(hints[field.name]), _default(field)) for field in dataclasses.fields(parameters)
    }
    return create_model(rope_type, __config__=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False), **fields)


def _checked(hint: Any) -> Any:
    """An annotation for pydantic. Alternatives such as a number or a word are checked here.

    Pydantic's own error would name each alternative as a setting.
    """
    if not any(typing.get_origin(choice) is typing.Literal for choice in typing.get_args(hint)):
        return hint

    def check(value: Any) -> Any:
        if not fits(value, hint):
            raise PydanticCustomError("alternatives", "Input should be {rule}", {"rule": rule_of_type(hint)})
        return value

    return Annotated[Any, PlainValidator(check)]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return Field(default_factory=field.default_factory)
    return ... if field.default is dataclasses.MISSING else field.default


AUTO = "auto"


class SettingRefused(Refused):
    """A setting was refused: the message gives its path, the rule and the value, one line for each."""


class ScalingSettings(BaseModel):
    """How requests past the trained length are rotated. Method parameters are keys of this section, too.

    Attributes:
        rope_type: the method: a file of ``posenc_runtime/encodings/scaling`` or ``read_time``; ``auto`` takes method
            and scales from the checkpoint.
        original_max_position_embeddings: trained length, tokens; the checkpoint's own when left out.
        scales: ascending, starting at 1; a request at scale s may grow to s times the trained length. ``auto`` takes
            them from the checkpoint and the served length, and is the empty list here.
        headroom_tokens: admission counts at most this many new tokens of a request, unless it is pinned.
        on_crossing: what happens to a request that outgrows its scale: ``rerotate`` re-rotates its cached keys,
            ``recompute`` prefills it again, ``pin`` admits it at the largest length that it may reach.
        rerotate_budget_tokens: at most this many cached tokens are re-rotated before one step; when left out, it is
            measured, so that a step takes at most twice as long as usual.
        prefix_reuse: which cached prefixes a new request may read: ``exact``, those of its own scale; ``rerotate``,
            others, too, as re-rotated copies, which is an approximation; ``continue``, what earlier turns have cached,
            and goes on as they would.
        rope_theta: base of the scaled frequencies; the checkpoint's own when left out.
        allow_beyond_trained: with scale 1 alone, serve lengths past the trained one, for comparisons.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    rope_type: str = "default"
    original_max_position_embeddings: int | None = Field(default=None, ge=1)
    scales: list[float] = [1.0]
    headroom_tokens: int = Field(default=Deployment.headroom_tokens, ge=1)
    on_crossing: OnCrossing = Deployment.on_crossing
    rerotate_budget_tokens: int | None = Field(default=Deployment.rerotate_budget_tokens, ge=1)
    prefix_reuse: PrefixReuse = Deployment.prefix_reuse
    rope_theta: float | None = Field(default=None, gt=1)
    allow_beyond_trained: bool = False

    @model_validator(mode="before")
    @classmethod
    def _auto_scales(cls, said: Any) -> Any:
        scales = said.get("scales") if isinstance(said, Mapping) else None
        if scales == []:
            refuse_scales(scales)
        return {**said, "scales": []} if scales == AUTO else said

    @model_validator(mode="after")
    def _method_parameters(self) -> Self:
        if self.rope_type == AUTO:
            if self.parameters:
                raise ValueError(
                    f"rope_type must name a method where scaling has parameters of a method, got {AUTO} and "
                    f"{', '.join(self.parameters)}: choose one of {', '.join(available())}"
                )
            if self.scales:
                refuse_scales(self.scales)
            return self
        if self.rope_type not in available():
            known = (AUTO, *available())
            hint = did_you_mean(self.rope_type, known)
            raise ValueError(f"rope_type must be one of {', '.join(known)}, got {self.rope_type!r}{hint}")
        parameters_model(self.rope_type).model_validate(self.parameters)
        method(self.rope_type)(**self.parameters)
        if turns_queries(self.rope_type):
            self.refuse_scales(f"rope_type is {self.rope_type}")
        if self.scales:
            refuse_contradictions(self.scales, self.rope_theta, self.allow_beyond_trained)
        return self

    def refuse_scales(self, where: str) -> None:
        """Refuse settings that go with scales, for a method that has none.

        Args:
            where: says, as a clause, that the method is one of these.

        Raises:
            ValueError: naming the setting and its value.
        """
        given = self.model_fields_set - self.parameters.keys() - {"rope_type", "original_max_position_embeddings"}
        if given:
            name = min(given)
            raise ValueError(
                f"{name} must be left out where {where}, got {getattr(self, name)!r}: this "
                "method turns queries when they read keys, so there are no scales, crossings or headroom"
            )

    def written(self) -> dict[str, Any]:
        """What was set, as it is written in a section."""
        said = self.model_dump(mode="json", exclude_unset=True)
        return said if self.scales or "scales" not in said else said | {"scales": AUTO}

    @property
    def is_complete(self) -> bool:
        """Whether the settings say method and scales, so that nothing is taken from the checkpoint for them."""
        return self.rope_type != AUTO and bool(self.scales)

    @property
    def parameters(self) -> dict[str, Any]:
        """The method's own parameters, as given."""
        return dict(self.model_extra or {})


class AttentionSettings(BaseModel):
    """Which attention the layers get.

    Attributes:
        backend: ``auto`` takes ours where a layer has a distance bias or contextual positions, and vLLM's elsewhere;
            ``bias`` and ``cope`` take ours or refuse the model; ``stock`` takes vLLM's or refuses it.
        window_tolerance: the share of a query's attention weights that may be skipped where a distance bias decays; 0
            skips nothing.
        fused_rotary: on NVIDIA GPUs, whether attention itself rotates queries and keys, by exact phases, in the kernel
            launch that writes the KV cache; ``auto`` does so where that was measured to be at least as fast.
        fused_keys: what the KV cache then holds. ``pure``: keys that are only rotated, so that re-rotation leaves pairs
            whose frequency does not change as they are. ``stock``: keys as vLLM's own tables make them, which are also
            multiplied by the attention factor.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    backend: Backend = AttentionChoice.backend
    window_tolerance: float = Field(default=AttentionChoice.window_tolerance, ge=0, lt=1)
    fused_rotary: FusedRotary = AttentionChoice.fused_rotary
    fused_keys: FusedKeys = AttentionChoice.fused_keys

    @field_validator("fused_rotary", mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        """Undo that YAML 1.1 reads ``on`` and ``off`` as true and false."""
        return ("on" if value else "off") if isinstance(value, bool) else value

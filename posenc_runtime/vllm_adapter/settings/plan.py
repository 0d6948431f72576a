"""What an engine is going to serve: our sections of ``additional_config``, completed from the checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from posenc_runtime.kv.deployment import UNROTATED, Deployment
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint, read_checkpoint
from posenc_runtime.vllm_adapter.contract.active import KEY
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import FIT_INTO_MEMORY, SECTION_KEYS
from posenc_runtime.vllm_adapter.settings.completion import complete
from posenc_runtime.vllm_adapter.settings.derivation import seen_where_rotated
from posenc_runtime.vllm_adapter.settings.explanations import explain_errors
from posenc_runtime.vllm_adapter.settings.front_end import (
    AccessSettings,
    FrontEndSettings,
    HealthSettings,
    LimitSettings,
)
from posenc_runtime.vllm_adapter.settings.section import AttentionSettings, ScalingSettings, SettingRefused

# Engine arguments that those of a deployment depend on.
LOOKED_AT = (
    *("scheduling_policy", "tensor_parallel_size", "pipeline_parallel_size", "async_scheduling"),
    *("disable_sliding_window", "speculative_config"),
)
# Engine arguments that a plan is made of.
PLANNED_FROM = (
    *("model", "max_model_len", "additional_config", *LOOKED_AT),
    *("hf_config_path", "hf_overrides", "trust_remote_code", "revision", "code_revision", "config_format"),
    "hf_token",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What an engine is going to serve.

    Attributes:
        checkpoint: None where its configuration is not read.
        auto_reason: why ``auto`` stands for this method and these scales; None where the settings name them.
        max_model_len: vLLM's argument: the longest request, tokens; ``FIT_INTO_MEMORY`` for the longest one that the
            cache has room for, up to the deployment's.
        made_of: engine arguments by name, without those that were left out.
    """

    deployment: Deployment
    attention: AttentionChoice
    front_end: FrontEndSettings
    checkpoint: Checkpoint | None
    auto_reason: str | None
    max_model_len: int
    made_of: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def is_of(self, engine_args: Any) -> bool:
        """Whether it was made of the arguments of vLLM's ``EngineArgs``; those that were left out are vLLM's own."""
        for field in dataclasses.fields(engine_args):
            if field.name not in PLANNED_FROM:
                continue
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if getattr(engine_args, field.name) != self.made_of.get(field.name, default):
                return False
        return True

    @property
    def remarks(self) -> tuple[str, ...]:
        """Lines for the user: what ``auto`` stands for and why, and what to change in settings or checkpoint."""
        said = []
        if self.auto_reason is not None:
            has_room = "; requests may be as long as the cache has room for"
            said.append(f"auto: {self.auto_reason}{has_room if self.max_model_len == FIT_INTO_MEMORY else ''}")
        if self.deployment.reuses_prefixes:
            said.append(
                "scaling.prefix_reuse: with rerotate, a turn that has copied a prefix shares no blocks. So later "
                "turns of the conversation compute more tokens again than with exact. Choose rerotate for documents "
                "that many requests share"
            )
        if self.checkpoint is None:
            return tuple(said)
        trained = self.deployment.original_max_position_embeddings
        if len(self.deployment.scales) > 1 and self.checkpoint.needs_no_scale(trained):
            reason = seen_where_rotated(self.checkpoint)
            said.append(f"scaling: {reason}: leave scales out, and set rope_type to auto")
        if self.checkpoint.added_yarn is not None:
            said.append(f"model: {self.checkpoint.added_yarn.advice}")
        return tuple(said)


class Sections(BaseModel):
    """Our sections of ``additional_config``, under the names that a deployment's file has for them."""

    scaling: ScalingSettings = Field(default_factory=ScalingSettings)
    attention: AttentionSettings = Field(default_factory=AttentionSettings)
    access: AccessSettings = Field(default_factory=AccessSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    health: HealthSettings = Field(default_factory=HealthSettings)


def plan_of(arguments: Mapping[str, Any], *, is_read: bool = True) -> Plan:
    """Complete our sections from the checkpoint, and check them against each other and other arguments.

    Args:
        arguments: of an engine, by name; ``PLANNED_FROM`` are used.
        is_read: whether the checkpoint's configuration is read. Sections that name the method, the scales and the
            trained length are enough without it.

    Raises:
        SettingRefused: when a section is refused or contradicts another argument, or the checkpoint cannot be scaled;
            it names settings of a file.
        UnreadableCheckpoint: when the checkpoint's configuration cannot be read.
    """
    additional = arguments["additional_config"]
    ours = {name: additional[key] for name, key in SECTION_KEYS.items() if key in additional}
    if "scaling" not in ours:
        raise SettingRefused(
            f"additional_config.{SECTION_KEYS[next(iter(ours))]} must be given with additional_config.{KEY}, got it "
            f'alone: add "{KEY}": {{}} to scale nothing'
        )
    sections, longest = _sections(ours)
    model, asked = arguments["model"], arguments.get("max_model_len")
    checkpoint = None
    if is_read:
        try:
            checkpoint = read_checkpoint(model, arguments)
        except Unsupported as error:
            raise SettingRefused(f"model: {error}") from None
    if asked not in (None, FIT_INTO_MEMORY):
        longest = min(asked, longest or asked)
    said = complete(
        sections.scaling, sections.attention, checkpoint, model=model, max_model_len=longest, engine=arguments
    )
    return Plan(
        deployment=said.deployment,
        attention=said.attention,
        front_end=FrontEndSettings(access=sections.access, limits=sections.limits, health=sections.health),
        checkpoint=checkpoint,
        auto_reason=said.auto_reason,
        max_model_len=said.max_model_len,
        made_of={name: arguments[name] for name in PLANNED_FROM if name in arguments},
    )


def _sections(ours: Mapping[str, Any]) -> tuple[Sections, int | None]:
    """The sections as settings, and ``max_model_len``, tokens, which the section of a complete deployment also has.

    Raises:
        SettingRefused: naming the setting, the rule and the value.
    """
    longest, scaling, attention = None, ours["scaling"], ours.get("attention", {})
    if isinstance(scaling, Mapping):
        scaling = dict(scaling)
        longest = scaling.pop("max_model_len", None)
        if longest is not None and (type(longest) is not int or longest < 1):
            raise SettingRefused(f"scaling.max_model_len: must be a whole number of at least 1, got {longest!r}")
        parameters = scaling.pop("parameters", {})
        if not isinstance(parameters, Mapping):
            raise SettingRefused(f"scaling.parameters: must be a mapping, got {parameters!r}")
        scaling |= parameters
        if scaling.get("rope_type") == UNROTATED:  # the checkpoint says the rest of a model without rotary embeddings
            scaling = {key: value for key, value in scaling.items() if key == "headroom_tokens"}
    if isinstance(attention, Mapping):  # the checkpoint says what its layers need
        attention = {key: value for key, value in attention.items() if key != "needs"}
    try:
        sections = Sections.model_validate({**ours, "scaling": scaling, "attention": attention})
    except ValidationError as error:
        rope_type = str(scaling.get("rope_type", "default")) if isinstance(scaling, Mapping) else "default"
        raise SettingRefused("\n".join(explain_errors(error, rope_type, tuple(Sections.model_fields)))) from None
    return sections, longest

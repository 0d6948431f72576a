"""Turns our sections of ``additional_config`` into all other arguments that an engine needs for them."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from posenc_runtime.kv.deployment import UNROTATED
from posenc_runtime.vllm_adapter import child_processes
from posenc_runtime.vllm_adapter.activation import activate
from posenc_runtime.vllm_adapter.active import KEY
from posenc_runtime.vllm_adapter.arguments.engine_args import engine_arguments
from posenc_runtime.vllm_adapter.arguments.flags import ArgumentRefused
from posenc_runtime.vllm_adapter.carried_names import CONNECTOR, CONNECTOR_MODULE, FIT_INTO_MEMORY, WORKER_EXTENSION
from posenc_runtime.vllm_adapter.checkpoints.checkpoint import Checkpoint, read_checkpoint
from posenc_runtime.vllm_adapter.checkpoints.weight_files import DamagedWeights, refuse_damaged
from posenc_runtime.vllm_adapter.http import endpoints
from posenc_runtime.vllm_adapter.http.draining import DEFAULT_SECONDS
from posenc_runtime.vllm_adapter.http.stock_access import refuse_other_front_ends
from posenc_runtime.vllm_adapter.quick_exit import exit_quickly
from posenc_runtime.vllm_adapter.refusals.arguments import refuse_arguments
from posenc_runtime.vllm_adapter.refusals.cpu_attention import refuse_head_size, refuse_latent_dtype
from posenc_runtime.vllm_adapter.refusals.engine import refuse_block_size, refuse_unsupported
from posenc_runtime.vllm_adapter.repeated_signals import heed_repeated_signals
from posenc_runtime.vllm_adapter.sections import ALL_SECTIONS
from posenc_runtime.vllm_adapter.settings.api_keys import refuse_unreadable
from posenc_runtime.vllm_adapter.settings.completion import Completed, completed
from posenc_runtime.vllm_adapter.settings.explanations import explained
from posenc_runtime.vllm_adapter.settings.front_end import (
    AccessSettings,
    FrontEndSettings,
    HealthSettings,
    LimitSettings,
)
from posenc_runtime.vllm_adapter.settings.section import AttentionSettings, ScalingSettings, SettingRefused

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.posenc")

_LAST_SECONDS = 10  # for several API servers to send the ends of their answers, and then for the engine to end

# Keys of additional_config, by the names that a deployment's file has for the sections.
_KEYS = dict(zip(("scaling", "attention", "access", "limits", "health"), ALL_SECTIONS, strict=True))

# Engine arguments that those of a deployment depend on.
_LOOKED_AT = (
    *("scheduling_policy", "tensor_parallel_size", "pipeline_parallel_size", "async_scheduling"),
    "disable_sliding_window",
)
_OF_THE_CHECKPOINT = (
    *("hf_config_path", "hf_overrides", "trust_remote_code", "revision", "code_revision", "config_format"),
    "hf_token",
)


class Sections(BaseModel):
    """Our sections of ``additional_config``, under the names that a deployment's file has for them."""

    scaling: ScalingSettings = Field(default_factory=ScalingSettings)
    attention: AttentionSettings = Field(default_factory=AttentionSettings)
    access: AccessSettings = Field(default_factory=AccessSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    health: HealthSettings = Field(default_factory=HealthSettings)


def configured(engine_args: Any, make: Callable[[Any], VllmConfig], serves: bool) -> VllmConfig:
    """The configuration of an engine whose ``additional_config`` has a section of ours.

    Args:
        engine_args: vLLM's ``EngineArgs``; not changed.
        make: vLLM's own ``create_engine_config``.
        serves: whether the engine is that of an API server.

    Raises:
        IncompatibleVllm: when this vLLM is not one that we were written for.
        SettingRefused: when a section is refused, or contradicts another argument; it names vLLM's arguments.
        Unsupported: when the engine cannot be combined with scaling.
    """
    activate()
    endpoints.offer()
    child_processes.install()
    refuse_arguments(engine_args)
    try:
        arguments = _with_all_they_need(engine_args)
    except (SettingRefused, ArgumentRefused) as error:
        raise SettingRefused(in_vllms_words(str(error))) from None
    if serves and not engine_args.worker_extension_cls:
        _refuse_damaged_weights(engine_args)
    if serves:
        arguments.shutdown_timeout = _shutdown_timeout(engine_args)
    with _our_environment(engine_args):
        vllm_config = _made(arguments, make)
    if serves and _starts_servers(engine_args):
        heed_repeated_signals()
        exit_quickly()
    refuse_unsupported(vllm_config)
    refuse_block_size(vllm_config)
    refuse_head_size(vllm_config, vllm_config.model_config.get_head_size())
    refuse_latent_dtype(vllm_config)
    return vllm_config


def _made(arguments: Any, make: Callable[[Any], VllmConfig]) -> VllmConfig:
    """vLLM's configuration, whose longest request is the deployment's, or what memory has room for up to that.

    Where vLLM is to fit the length into the memory, it begins with a length that it derives from the checkpoint's
    configuration, by keys and factors that a deployment does not follow. So we name the deployment's length, and ask
    for the fitting afterwards.
    """
    if arguments.max_model_len != FIT_INTO_MEMORY:
        return make(arguments)
    arguments = copy.copy(arguments)
    arguments.max_model_len = arguments.additional_config[KEY]["max_model_len"]
    vllm_config = make(arguments)
    vllm_config.model_config.original_max_model_len = FIT_INTO_MEMORY
    return vllm_config


def in_vllms_words(refusal: str) -> str:
    """Reword a refusal: replace the names of settings in a deployment's file by the names of vLLM's arguments."""
    names = {name: f"additional_config.{key}" for name, key in _KEYS.items()}
    sections = re.sub(rf"\b({'|'.join(names)})(?=\.[a-z_]|:)", lambda found: names[found[1]], refusal)
    return re.sub(r"\bengine(\.(?=[a-z_])|: )", "", sections)


def _with_all_they_need(engine_args: Any) -> Any:
    """A copy of the engine's arguments with everything that our sections ask for; what else the user set stays."""
    additional = dict(engine_args.additional_config)
    ours = {name: additional.pop(key) for name, key in _KEYS.items() if key in additional}
    if "scaling" not in ours:
        raise SettingRefused(
            f"additional_config.{_KEYS[next(iter(ours))]} must be given with additional_config.{KEY}, got it alone: "
            f'add "{KEY}": {{}} to scale nothing'
        )
    given_sections, longest = _sections(ours)
    refuse_other_front_ends(given_sections.access)
    refuse_unreadable(given_sections.access)
    scaling, attention = given_sections.scaling, given_sections.attention
    given = {name: getattr(engine_args, name) for name in _LOOKED_AT}
    checkpoint = _checkpoint(engine_args)
    if engine_args.max_model_len not in (None, FIT_INTO_MEMORY):
        longest = min(engine_args.max_model_len, longest or engine_args.max_model_len)
    sections = completed(scaling, attention, checkpoint, model=engine_args.model, max_model_len=longest, engine=given)
    arguments = copy.copy(engine_args)
    part = () if checkpoint is None else checkpoint.text_part
    front_end = FrontEndSettings(
        access=given_sections.access, limits=given_sections.limits, health=given_sections.health
    )
    for name, value in _arguments(engine_args, sections, given, additional, front_end, part).items():
        setattr(arguments, name, value)
    if sections.auto_reason is not None:
        _say_what_auto_is(sections)
    return arguments


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
        raise SettingRefused("\n".join(explained(error, rope_type, tuple(Sections.model_fields)))) from None
    return sections, longest


def _checkpoint(engine_args: Any) -> Checkpoint | None:
    """The checkpoint's own configuration; None for an object store's, which vLLM reads with the weights."""
    if "://" in engine_args.model:
        return None
    return read_checkpoint(
        engine_args.model,
        {name: getattr(engine_args, name) for name in _OF_THE_CHECKPOINT},
    )


def _arguments(
    engine_args: Any,
    sections: Completed,
    given: dict[str, Any],
    additional: dict[str, Any],
    front_end: FrontEndSettings,
    text_part: Sequence[str],
) -> dict[str, Any]:
    """The arguments that a deployment needs and that the user has not given.

    Given values that cannot be right are refused later, when vLLM's whole configuration is there.

    Args:
        text_part: as in ``Checkpoint``. The text of a multimodal model has a configuration of its own, which must say
            the served length, too: vLLM fits ``max_model_len`` into the memory up to the length that it says.
    """
    from vllm.config import KVTransferConfig

    deployment, hf_overrides = sections.deployment, engine_args.hf_overrides
    if isinstance(hf_overrides, Mapping) and hf_overrides.get("max_position_embeddings") == deployment.max_model_len:
        hf_overrides = {key: value for key, value in hf_overrides.items() if key != "max_position_embeddings"}
    given = {**given, "hf_overrides": hf_overrides, "additional_config": additional}
    backend = engine_args.attention_backend
    if backend is not None and getattr(backend, "name", backend) != "CUSTOM":
        given["attention_backend"] = backend
    ours = engine_arguments(deployment, given, sections.attention) | {"max_model_len": sections.max_model_len}
    ours["additional_config"] |= front_end.to_additional_config()
    if text_part:
        ours["hf_overrides"] = _with_length(ours["hf_overrides"], text_part, deployment.max_model_len)
    if engine_args.worker_extension_cls not in ("", WORKER_EXTENSION):
        raise SettingRefused(
            f"worker_extension_cls must be left out where additional_config.{KEY} is given, got "
            f"{engine_args.worker_extension_cls}: posenc needs its own class there"
        )
    transfer = ours.pop("kv_transfer_config")
    theirs = engine_args.kv_transfer_config
    if isinstance(theirs, Mapping):
        theirs = KVTransferConfig(**theirs)
    if theirs is None:
        ours["kv_transfer_config"] = KVTransferConfig(**transfer)
    elif theirs.kv_connector == CONNECTOR:
        ours["kv_transfer_config"] = theirs = copy.copy(theirs)
        theirs.kv_connector_module_path = CONNECTOR_MODULE
    if engine_args.max_model_len == FIT_INTO_MEMORY:
        ours["max_model_len"] = FIT_INTO_MEMORY
    if engine_args.scheduler_cls is not None:
        ours.pop("scheduler_cls", None)
    return ours


def _with_length(overrides: Mapping[str, Any], text_part: Sequence[str], longest: int) -> dict[str, Any]:
    """``hf_overrides`` with the served length in the configuration of the text.

    Raises:
        SettingRefused: when the user has set another length there.
    """
    if text_part:
        name, *further = text_part
        return {**overrides, name: _with_length(overrides.get(name) or {}, further, longest)}
    if (given := overrides.get("max_position_embeddings", longest)) != longest:
        raise SettingRefused(
            f"hf_overrides: must leave out max_position_embeddings of the text, got {given!r}: the scales say how long "
            "requests may be"
        )
    return {**overrides, "max_position_embeddings": longest}


def _refuse_damaged_weights(engine_args: Any) -> None:
    folder = pathlib.Path(engine_args.model)
    if folder.is_dir():
        try:
            refuse_damaged(folder, {"load_format": engine_args.load_format})
        except DamagedWeights as error:
            raise SettingRefused(f"model: {error}") from None


def _shutdown_timeout(engine_args: Any) -> int:
    """For how many seconds a server that is told to stop waits for its requests.

    vLLM's own default is not to wait. Arguments that ``posenc serve`` or ``posenc flags`` has completed say what the
    user asked for, 0 too. The process that starts several API servers waits longer than they do.
    """
    seconds = int(engine_args.shutdown_timeout)
    if seconds == 0 and not engine_args.worker_extension_cls:
        seconds = DEFAULT_SECONDS
    return seconds + (_LAST_SECONDS if _starts_servers(engine_args) else 0)


def _starts_servers(engine_args: Any) -> bool:
    """Whether this process starts several API servers, and is none itself."""
    return bool(engine_args._api_process_rank == -1)


def _say_what_auto_is(sections: Completed) -> None:
    deployment = sections.deployment
    scales = ", ".join(deployment.scale_set.label(index) for index in range(len(deployment.scales)))
    logger.info(
        "auto chose %s with scales %s and the trained length %d tokens, because %s",
        deployment.rope_type,
        scales,
        deployment.original_max_position_embeddings,
        sections.auto_reason,
    )


@contextlib.contextmanager
def _our_environment(engine_args: Any) -> Iterator[None]:
    """Set what vLLM's configuration and workers read from the environment. What the user set stays.

    vLLM is told to accept lengths past a tokenizer's ``model_max_length``: the largest scale covers them, or we refuse
    them. On CPUs, vLLM reserves a second core for each worker where there is a connector, for network transfers. Our
    connector makes none, so one core for each worker is reserved. Decision 39.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        num_workers = engine_args.tensor_parallel_size * engine_args.pipeline_parallel_size
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", str(num_workers))
    is_ours = "VLLM_ALLOW_LONG_MAX_MODEL_LEN" not in os.environ
    os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    try:
        yield
    finally:
        if is_ours:
            del os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"]

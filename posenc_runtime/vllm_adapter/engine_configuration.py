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

from posenc_runtime.vllm_adapter import offline_beams
from posenc_runtime.vllm_adapter.checkpoint.hub import is_in_object_store
from posenc_runtime.vllm_adapter.checkpoint.weight_files import DamagedWeights, refuse_damaged
from posenc_runtime.vllm_adapter.contract.active import KEY, deployment_of
from posenc_runtime.vllm_adapter.contract.names import (
    ALL_SECTIONS,
    FIT_INTO_MEMORY,
    KEYED_CONNECTORS,
    SECTION_KEYS,
    WORKER_EXTENSION,
)
from posenc_runtime.vllm_adapter.in_server import endpoints
from posenc_runtime.vllm_adapter.in_server.stock_access import refuse_other_front_ends
from posenc_runtime.vllm_adapter.in_server.stopping import DEFAULT_SECONDS
from posenc_runtime.vllm_adapter.in_worker.activation import activate
from posenc_runtime.vllm_adapter.processes import child_processes
from posenc_runtime.vllm_adapter.processes.ending import exit_quickly
from posenc_runtime.vllm_adapter.processes.signals import heed_repeated_signals
from posenc_runtime.vllm_adapter.refusals.arguments import refuse_arguments
from posenc_runtime.vllm_adapter.refusals.cpu_attention import refuse_head_size, refuse_latent_dtype
from posenc_runtime.vllm_adapter.refusals.drafters import has_rotation
from posenc_runtime.vllm_adapter.refusals.engine import refuse_block_size, refuse_unsupported
from posenc_runtime.vllm_adapter.refusals.shared_caches import needs_keys
from posenc_runtime.vllm_adapter.refusals.tiers import hands_over
from posenc_runtime.vllm_adapter.settings.api_keys import refuse_unreadable
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from posenc_runtime.vllm_adapter.settings.arguments.flags import ArgumentRefused
from posenc_runtime.vllm_adapter.settings.arguments.tiers import with_tiers
from posenc_runtime.vllm_adapter.settings.plan import LOOKED_AT, PLANNED_FROM, Plan, plan_of
from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from posenc_runtime.vllm_adapter.settings.transfer_key import transfer_key

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint

logger = logging.getLogger("vllm.posenc")

_LAST_SECONDS = 10  # for several API servers to send the ends of their answers, and then for the engine to end


def configure_for_vllm(engine_args: Any, make: Callable[[Any], VllmConfig], serves: bool) -> VllmConfig:
    """As ``configure``, for engines of others than our own command; refusals name vLLM's arguments.

    Raises:
        Refused: as ``configure``.
    """
    try:
        plan, vllm_config = configure(engine_args, make, serves=serves)
    except (SettingRefused, ArgumentRefused) as error:
        raise SettingRefused(in_vllms_words(str(error))) from None
    if plan.auto_reason is not None:
        _say_what_auto_is(plan)
    return vllm_config


def configure(
    engine_args: Any, make: Callable[[Any], VllmConfig], *, serves: bool, planned: Plan | None = None
) -> tuple[Plan, VllmConfig]:
    """The plan and the configuration of an engine whose ``additional_config`` has a section of ours.

    Args:
        engine_args: vLLM's ``EngineArgs``; not changed.
        make: vLLM's own ``create_engine_config``.
        serves: whether the engine is that of an API server.
        planned: a plan that was made before; it holds where it was made of the arguments that vLLM has parsed.

    Raises:
        IncompatibleVllm: when this vLLM is not one that we were written for.
        SettingRefused: when a section is refused, or contradicts another argument; it names settings of a file.
        Unsupported: when the engine cannot be combined with scaling.
    """
    activate()
    endpoints.offer()
    child_processes.install()
    offline_beams.keep_at_one_scale()
    refuse_arguments(engine_args)
    is_read = not is_in_object_store(engine_args.hf_config_path or engine_args.model)
    if planned is not None and planned.is_of(engine_args):
        plan = planned
    else:
        plan = plan_of({name: getattr(engine_args, name) for name in PLANNED_FROM}, is_read=is_read)
    refuse_other_front_ends(plan.front_end.access)
    refuse_unreadable(plan.front_end.access)
    arguments = _with_all_they_need(engine_args, plan)
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
    if serves and not plan.deployment.turns_queries and hands_over(vllm_config.kv_transfer_config):
        transfer_key()  # refused where there is none
    refuse_block_size(vllm_config)
    refuse_head_size(vllm_config, vllm_config.model_config.get_head_size())
    refuse_latent_dtype(vllm_config)
    draft_as_long_as_served(vllm_config)
    return plan, vllm_config


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
    names = {name: f"additional_config.{key}" for name, key in SECTION_KEYS.items()}
    sections = re.sub(rf"\b({'|'.join(names)})(?=\.[a-z_]|:)", lambda found: names[found[1]], refusal)
    return re.sub(r"\bengine(\.(?=[a-z_])|: )", "", sections)


def _with_all_they_need(engine_args: Any, plan: Plan) -> Any:
    """A copy of the engine's arguments with everything that our sections ask for; what else the user set stays."""
    given = {name: getattr(engine_args, name) for name in LOOKED_AT}
    additional = {key: value for key, value in engine_args.additional_config.items() if key not in ALL_SECTIONS}
    arguments = copy.copy(engine_args)
    for name, value in _arguments(engine_args, plan, given, additional).items():
        setattr(arguments, name, value)
    return arguments


def _arguments(engine_args: Any, plan: Plan, given: dict[str, Any], additional: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a deployment needs and that the user has not given.

    Given values that cannot be right are refused later, when vLLM's whole configuration is there. The text of a
    multimodal model has a configuration of its own, which must say the served length, too.
    """
    from vllm.config import KVTransferConfig

    deployment, hf_overrides = plan.deployment, engine_args.hf_overrides
    text_part = () if plan.checkpoint is None else plan.checkpoint.text_part
    if isinstance(hf_overrides, Mapping) and hf_overrides.get("max_position_embeddings") == deployment.max_model_len:
        hf_overrides = {key: value for key, value in hf_overrides.items() if key != "max_position_embeddings"}
    given = {**given, "hf_overrides": hf_overrides, "additional_config": additional}
    backend = engine_args.attention_backend
    if backend is not None and getattr(backend, "name", backend) != "CUSTOM":
        given["attention_backend"] = backend
    ours = engine_arguments(deployment, given, plan.attention) | {"max_model_len": plan.max_model_len}
    ours["additional_config"] |= plan.front_end.to_additional_config()
    if plan.checkpoint is not None and deployment.turns_queries:
        ours["hf_overrides"] = {**ours["hf_overrides"], **_kept_rotation(plan.checkpoint)}
    if text_part:
        ours["hf_overrides"] = _with_length(ours["hf_overrides"], text_part, deployment.max_model_len)
    if engine_args.worker_extension_cls not in ("", WORKER_EXTENSION):
        raise SettingRefused(
            f"worker_extension_cls must be left out where additional_config.{KEY} is given, got "
            f"{engine_args.worker_extension_cls}: posenc needs its own class there"
        )
    transfer = ours.pop("kv_transfer_config", None)
    theirs = engine_args.kv_transfer_config
    if isinstance(theirs, Mapping):
        theirs = KVTransferConfig(**theirs)
    if transfer is None:  # where queries turn, a connector is the user's own
        if theirs is not None and needs_keys(theirs.kv_connector):
            ours["kv_transfer_config"] = theirs = copy.copy(theirs)
            theirs.kv_connector_module_path = KEYED_CONNECTORS
    else:
        ours["kv_transfer_config"] = with_tiers(theirs or KVTransferConfig(**transfer), engine_args.kv_offloading_size)
        ours["kv_offloading_size"] = None
    if engine_args.max_model_len == FIT_INTO_MEMORY:
        ours["max_model_len"] = FIT_INTO_MEMORY
    if engine_args.scheduler_cls is not None:
        ours.pop("scheduler_cls", None)
    return ours


def _kept_rotation(checkpoint: Checkpoint) -> dict[str, Any]:
    """Overrides that let vLLM rotate as the checkpoint says, whatever length is served."""
    overrides: dict[str, Any] = {}
    if checkpoint.dual_chunk is not None:
        # This vLLM has no such attention, and refuses the key where its backend is not named.
        overrides["dual_chunk_attention_config"] = None
    if checkpoint.rope_type == "longrope":
        # vLLM makes the attention factor from the served length, unless these keys say it.
        factor, said = checkpoint.parameters.get("attention_factor"), dict(checkpoint.text_config.rope_parameters)
        for name in ("short_mscale", "long_mscale"):
            said[name] = checkpoint.parameters.get(name) or factor
        overrides["rope_parameters"] = said
    return overrides


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


def _say_what_auto_is(plan: Plan) -> None:
    deployment = plan.deployment
    scales = ", ".join(deployment.scale_set.label(index) for index in range(len(deployment.scales)))
    logger.info(
        "auto chose %s with scales %s and the trained length %d tokens, because %s",
        deployment.rope_type,
        scales,
        deployment.original_max_position_embeddings,
        plan.auto_reason,
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


def draft_as_long_as_served(vllm_config: VllmConfig) -> None:
    """Let a drafter that rotates draft for requests of every length; the length that a user set for it stays.

    vLLM ends a drafter at the length of its own checkpoint, which was trained on as few tokens as the model that it
    drafts for. Past it, vLLM drafts zeros for every request of the batch. Our rotary embeddings reach the served length
    in the drafter, too: its queries turn as the model's do, or its keys have the model's scales.
    """
    drafting, deployment = vllm_config.speculative_config, deployment_of(vllm_config)
    drafter = getattr(drafting, "draft_model_config", None)
    if drafter is None or drafter is vllm_config.model_config or deployment is None or not deployment.rotates:
        return
    if drafting.max_model_len is None and has_rotation(drafter):
        drafter.max_model_len = vllm_config.model_config.max_model_len

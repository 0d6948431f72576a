"""Turns a deployment into vLLM's own arguments, for ``posenc serve`` and for users of plain vLLM."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.checkpoint.overrides import rotations_in
from posenc_runtime.vllm_adapter.contract.active import KEY
from posenc_runtime.vllm_adapter.contract.attention_choice import KEY as ATTENTION
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.contract.errors import rule_of
from posenc_runtime.vllm_adapter.contract.names import (
    CONNECTOR,
    CONNECTOR_MODULE,
    SCHEDULER,
    SECTION_KEYS,
    WORKER_EXTENSION,
)
from posenc_runtime.vllm_adapter.contract.scheduler_choice import needs_ours
from posenc_runtime.vllm_adapter.settings.arguments import table
from posenc_runtime.vllm_adapter.settings.arguments.flags import ArgumentRefused, Flag, Unlisted, flags_of
from posenc_runtime.vllm_adapter.settings.arguments.front_end_arguments import refuse_unusable
from posenc_runtime.vllm_adapter.settings.arguments.parser import parser
from posenc_runtime.vllm_adapter.settings.setting_names import (
    DERIVED,
    OF_SEVERAL_SERVERS,
    TOP_LEVEL,
    as_path,
    no_argument,
)


def engine_arguments(
    deployment: Deployment,
    engine: Mapping[str, Any] | None = None,
    attention: AttentionChoice | None = None,
) -> dict[str, Any]:
    """Keyword arguments for ``vllm.LLM`` or ``AsyncEngineArgs``: the caller's own, and those that a deployment needs.

    Args:
        attention: which attention the layers get; the defaults when left out.

    Raises:
        ArgumentRefused: when one of the caller's arguments contradicts the deployment.
    """
    given = dict(engine or {})
    refuse_given(given)
    hf_overrides = given.pop("hf_overrides", None) or {}
    if not isinstance(hf_overrides, Mapping):
        raise ArgumentRefused(
            f"engine.hf_overrides: must be a mapping, got {hf_overrides!r}: posenc must see whether it "
            "changes how positions are rotated"
        )
    for path, value in rotations_in(hf_overrides):
        raise ArgumentRefused(
            f"engine.hf_overrides.{path}: must be left out, got {value!r}: the section scaling sets how positions are "
            "rotated"
        )
    additional_config = given.pop("additional_config", None) or {}
    # A model with a learned vector for each position has as many as its configuration says.
    keeps_its_positions = (
        not deployment.rotates and deployment.max_model_len < deployment.original_max_position_embeddings
    )
    longest = {} if keeps_its_positions else {"max_position_embeddings": deployment.max_model_len}
    ours = {
        "max_model_len": deployment.max_model_len,
        "hf_overrides": {**hf_overrides, **longest},
        "additional_config": {
            **additional_config,
            KEY: deployment.to_mapping(),
            ATTENTION: (attention or AttentionChoice()).to_mapping(),
        },
        "worker_extension_cls": WORKER_EXTENSION,
    }
    if not deployment.turns_queries and given.get("kv_transfer_config") is None:
        ours["kv_transfer_config"] = {
            "kv_connector": CONNECTOR,
            "kv_connector_module_path": CONNECTOR_MODULE,
            "kv_role": "kv_both",
        }
    if attention is not None and attention.fused_rotary == "on" and not _is_cuda():
        raise ArgumentRefused(
            "attention.fused_rotary: must be auto or off on this device, got 'on': the kernel that "
            "rotates and writes the KV cache needs an NVIDIA GPU"
        )
    if attention is not None and attention.takes_ours and _is_cuda():
        if "attention_backend" in given:
            raise ArgumentRefused(
                f"engine.attention_backend: must be left out, got {given['attention_backend']!r}: with "
                f"attention.backend {attention.backend}, this model's layers use a backend of posenc. To choose one of "
                "vLLM's backends, set attention.backend to stock"
            )
        ours["attention_backend"] = "CUSTOM"
    drafts = given.get("speculative_config") is not None
    if needs_ours(deployment, given.get("scheduling_policy", "fcfs"), drafts=drafts):
        ours["scheduler_cls"] = SCHEDULER
    if deployment.changes_scales and given.get("pipeline_parallel_size", 1) > 1:
        if given.get("async_scheduling"):
            raise ArgumentRefused(
                "engine.async_scheduling: must be false where engine.pipeline_parallel_size is above 1, unless "
                "scaling.on_crossing is pin and scaling.prefix_reuse is exact, got true: no test shows that every "
                "pipeline stage then has the keys of a crossing request"
            )
        ours["async_scheduling"] = False
    return given | ours


def refuse_given(engine: Mapping[str, Any]) -> None:
    """Check a caller's engine arguments: they leave out what follows from a deployment.

    Raises:
        ArgumentRefused: when one is given, with the setting that it follows from, or a number of workers is none.
    """
    for key, setting in DERIVED.items():
        if key in engine:
            source = as_path(TOP_LEVEL, key) if key == setting else setting
            raise ArgumentRefused(f"engine.{key}: must be left out, got {engine[key]!r}: posenc sets it from {source}")
    for key in ("tensor_parallel_size", "pipeline_parallel_size"):
        if key in engine and (type(engine[key]) is not int or engine[key] < 1):
            raise ArgumentRefused(f"engine.{key}: must be a whole number of at least 1, got {engine[key]!r}")
    additional_config = engine.get("additional_config") or {}
    if not isinstance(additional_config, Mapping):
        raise ArgumentRefused(f"engine.additional_config: must be a mapping, got {additional_config!r}")
    for setting, key in SECTION_KEYS.items():
        if key in additional_config:
            raise ArgumentRefused(
                f"engine.additional_config.{key}: must be left out, got {additional_config[key]!r}: posenc sets it "
                f"from the section {setting}"
            )


def serve_arguments(
    *, model: str, served_model_name: str | None, rope_type: str, engine: Mapping[str, Any], http: Mapping[str, Any]
) -> argparse.Namespace:
    """Everything that vLLM's server takes, parsed and checked by vLLM's own parser.

    Args:
        rope_type: the method that the settings ask for, for suggestions.
        engine: engine arguments by name, our sections in ``additional_config`` among them.
        http: front-end arguments by name, host and port among them.

    Raises:
        ArgumentRefused: when an argument is unknown, or is refused by vLLM.
    """
    from vllm.exceptions import VLLMClientError

    vllms, actions = parser()
    flags = _serve_flags(table.of_actions(actions), served_model_name, engine, http, rope_type)
    args: argparse.Namespace = vllms.parse_args(["--model", model, *flags])
    refuse_unusable(args)
    try:
        releases.cli_args().validate_parsed_serve_args(args)
    except (TypeError, ValueError, VLLMClientError) as error:
        parameter = getattr(error, "parameter", None)
        raise ArgumentRefused(f"server{f'.{parameter}' if parameter else ''}: {error}") from None
    return args


def command_line(
    *, model: str, served_model_name: str | None, rope_type: str, engine: Mapping[str, Any], http: Mapping[str, Any]
) -> list[str]:
    """The command with which plain vLLM runs this deployment.

    It is ``vllm serve``. With vLLM's package for CPUs, whose command does not start, it is ``python -m`` with the
    module of vLLM's API server.

    Args:
        rope_type: the method that the settings ask for, for suggestions.
        engine: engine arguments by name, our sections in ``additional_config`` among them.
        http: front-end arguments by name.

    Raises:
        ArgumentRefused: when an argument is unknown.
    """
    flags = _stored_flags(served_model_name, engine, http, rope_type)
    if flags is None:
        flags = _serve_flags(table.of_actions(parser()[1]), served_model_name, engine, http, rope_type)
    command = ["vllm", "serve", model]
    if not releases.has_command():
        command = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    return [*command, *flags]


def _stored_flags(
    served_model_name: str | None, engine: Mapping[str, Any], http: Mapping[str, Any], rope_type: str
) -> list[str] | None:
    """The flags by the table that is stored for this vLLM; None where only its parser can tell."""
    known = table.read_stored()
    if known is None:
        return None
    try:
        return _serve_flags(known, served_model_name, engine, http, rope_type)
    except Unlisted:
        return None


def _serve_flags(
    known: Mapping[str, Mapping[str, Flag]],
    served_model_name: str | None,
    engine: Mapping[str, Any],
    http: Mapping[str, Any],
    rope_type: str,
) -> list[str]:
    flags: list[str] = []
    for section, given in (("engine", engine), ("server", http)):
        of_section = known[section]
        for key, value in given.items():
            if key in OF_SEVERAL_SERVERS and (value or key not in of_section):
                raise ArgumentRefused(
                    f"{section}.{key}: must be left out, got {value!r}: posenc serve runs one API server. For several, "
                    f"run the command that posenc flags prints, and add {key} to it"
                )
            if key not in of_section:
                raise ArgumentRefused(no_argument(section, key, value, rope_type))
            flags += flags_of(f"{section}.{key}", of_section[key], value)
    if served_model_name is not None:
        flags += ["--served-model-name", served_model_name]
    return flags


def _is_cuda() -> bool:
    """Whether this is a GPU, where each layer chooses its backend; on the CPU, vLLM gives all layers the same one."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda_alike())


def refusals_of_vllm(error: Exception) -> list[str]:
    """What vLLM's configuration refused: one text for each setting, with the setting's name in our file."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    if not isinstance(error, ValidationError):
        return [f"engine: {' '.join(str(error).split()) or type(error).__name__}"]
    names = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    lines = []
    for problem in error.errors():
        rule = rule_of(problem["msg"])
        path = ".".join(str(part) for part in problem["loc"])
        if not path:  # the rule is about several settings, and the input is all of them
            lines.append(f"engine: {rule}")
        else:
            known = path.split(".")[0] in names
            lines.append(f"engine{'.' if known else ': '}{path}: {rule}, got {problem['input']!r}")
    return lines


def with_section(refusal: str) -> str:
    """Reword a refusal of ours that begins with the name of a vLLM argument: name the setting as our file does."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    names = {field.name for field in dataclasses.fields(AsyncEngineArgs)} - DERIVED.keys()
    return f"engine.{refusal}" if refusal.split(maxsplit=1)[0] in names else refusal

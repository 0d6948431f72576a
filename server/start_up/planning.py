"""Turns settings into vLLM's arguments, with our sections as they are written; the adapter makes a plan of them."""

from __future__ import annotations

import argparse
from typing import Any

from posenc_runtime.vllm_adapter.contract.names import ATTENTION_SECTION, DEPLOYMENT_SECTION, WORKER_EXTENSION
from posenc_runtime.vllm_adapter.in_server.stopping import DEFAULT_SECONDS
from posenc_runtime.vllm_adapter.releases.arguments import argument_names
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import command_line, refuse_given, serve_arguments
from posenc_runtime.vllm_adapter.settings.plan import Plan, plan_of
from server.deployment.checkpoint import refused_if_unreadable
from server.deployment.settings import Settings


def written_arguments(settings: Settings) -> dict[str, Any]:
    """vLLM's engine arguments by name, but for the model's names.

    Raises:
        ArgumentRefused: when ``engine`` has an argument that follows from other settings.
    """
    refuse_given(settings.engine)
    engine: dict[str, Any] = {"shutdown_timeout": DEFAULT_SECONDS, **settings.engine}
    if settings.log_format == "json" and "logging_config" in argument_names()["engine"]:
        engine.setdefault("logging_config", {"formatter": "json"})
    if settings.max_model_len is not None:
        engine["max_model_len"] = settings.max_model_len
    engine["additional_config"] = {
        **(engine.get("additional_config") or {}),
        DEPLOYMENT_SECTION: settings.scaling.written(),
        ATTENTION_SECTION: settings.attention.model_dump(mode="json", exclude_unset=True),
        **settings.front_end.to_additional_config(),
    }
    # Says to the adapter that these are all arguments of a deployment, none of vLLM's own defaults among them.
    engine["worker_extension_cls"] = WORKER_EXTENSION
    return engine


def serve_namespace(settings: Settings, *, quiet: bool = True) -> argparse.Namespace:
    """The arguments of vLLM's server, checked by vLLM's own parser.

    Args:
        quiet: whether vLLM's access log is left out, unless the settings ask for it.

    Raises:
        ArgumentRefused: when an argument is unknown, or is refused by vLLM.
    """
    from server.app import plugin  # imports vLLM

    http = settings.server.arguments
    args = serve_arguments(**_named(settings, {"uvicorn_log_level": "warning"} | http if quiet else http))
    is_json = settings.log_format == "json"
    log = "json" if is_json and settings.log_requests == "text" else settings.log_requests
    setattr(args, plugin.REQUEST_LOG, log)
    return args


def command(settings: Settings) -> list[str]:
    """The command with which plain vLLM serves the same deployment, as a list of words.

    Raises:
        ArgumentRefused: when an argument is unknown.
    """
    return command_line(**_named(settings, settings.server.arguments))


def plan_settings(settings: Settings, *, is_read: bool = True) -> Plan:
    """Complete the settings from the checkpoint, without an engine's configuration.

    Args:
        is_read: whether the checkpoint's configuration is read.

    Raises:
        SettingRefused: when two settings contradict each other, nobody knows the trained length, or the checkpoint
            cannot be read or scaled.
    """
    with refused_if_unreadable(settings):
        return plan_of({"model": settings.model, **written_arguments(settings)}, is_read=is_read)


def _named(settings: Settings, http: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": settings.model,
        "served_model_name": settings.served_model_name,
        "rope_type": settings.scaling.rope_type,
        "engine": written_arguments(settings),
        "http": http,
    }

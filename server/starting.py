"""From settings to a server that runs, with what its start shows."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
from typing import NoReturn

from rich.console import Console

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import serving
from posenc_runtime.vllm_adapter.attention.choice import AttentionChoice
from posenc_runtime.vllm_adapter.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.derivation import derived
from posenc_runtime.vllm_adapter.engine_args import serve_arguments
from posenc_runtime.vllm_adapter.section import AUTO
from server import plugin, report
from server.deployment import attention_of, deployment_of
from server.settings import Settings

_FIT_INTO_MEMORY = -1  # vLLM's max_model_len for the longest request that the cache has room for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is going to be served.

    Attributes:
        args: vLLM's own, for its server.
        reason: a line that says what ``auto`` stands for and why; empty where the settings say it all.
    """

    deployment: Deployment
    attention: AttentionChoice
    args: argparse.Namespace
    reason: str


def planned(settings: Settings, checkpoint: Checkpoint | None, *, quiet: bool = True) -> Plan:
    """Complete the settings, and have vLLM's own parser check its arguments.

    Args:
        checkpoint: None where it cannot be read.
        quiet: whether vLLM's own progress bars and access log are left out, unless the settings ask for them.

    Raises:
        SettingRefused: when two settings contradict each other.
        ArgumentRefused: when an argument is unknown, contradicts the deployment, or is refused by vLLM.
    """
    deployment, attention = deployment_of(settings, checkpoint), attention_of(settings, checkpoint)
    engine, http = settings.engine, settings.server.arguments
    if quiet:
        engine = {"use_tqdm_on_load": False} | engine
        http = {"uvicorn_log_level": "warning"} | http
    args = serve_arguments(
        model=settings.model,
        served_model_name=settings.served_model_name,
        deployment=deployment,
        attention=attention,
        engine=engine,
        http=http,
    )
    reason = ""
    if settings.scaling.rope_type == AUTO and deployment.rotates:
        reason = f"auto: {derived(settings.scaling, checkpoint, settings.model).reason}"
        if settings.max_model_len is None:
            args.max_model_len = _FIT_INTO_MEMORY
            reason += "; requests may be as long as the cache has room for"
    setattr(args, plugin.REQUEST_LOG, settings.log_requests)
    return Plan(deployment=deployment, attention=attention, args=args, reason=reason)


def serve(settings: Settings, out: Console, *, verbose: bool, checkpoint: Checkpoint | None) -> NoReturn:
    """Serve until told to stop; then this process ends.

    Raises:
        Refused: when something that was asked for is refused.
        Failed: when the engine does not start, or ends by itself.
    """
    serving.prepare_environment(verbose=verbose)
    plan = planned(settings, checkpoint, quiet=not verbose)
    serving.engine_configuration(plan.args)
    out.print(report.headline(settings, plan.deployment))
    if plan.reason:
        out.print(plan.reason)
    _show(out)
    try:
        serving.run(plan.args, plugin.ENDED)
    except serving.StoppedEarly as stop:
        _leave(out, str(stop), 128 + stop.number)
    _leave(out, "stopped", 0)


def _show(out: Console) -> None:
    """Have what our plugin says of the start, and of requests, shown as it is; vLLM's own log has levels and files."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            out.print(record.getMessage(), markup=False, highlight=False)

    logger = logging.getLogger("vllm.posenc")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(Shown())


def _leave(out: Console, said: str, status: int) -> NoReturn:
    """End this process at once: Triton's bindings, which vLLM imports everywhere, report leaks by the page on exit."""
    out.print(said)
    out.file.flush()
    os._exit(status)

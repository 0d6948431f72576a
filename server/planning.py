"""From settings to all that vLLM's server is started with."""

from __future__ import annotations

import argparse
import dataclasses

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.arguments.engine_args import serve_arguments
from posenc_runtime.vllm_adapter.attention.choice import AttentionChoice
from posenc_runtime.vllm_adapter.checkpoints.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.settings.derivation import FIT_INTO_MEMORY, derived
from posenc_runtime.vllm_adapter.settings.section import AUTO
from server import plugin
from server.deployment import attention_of, deployment_of
from server.settings import Settings


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
        quiet: whether vLLM's access log is left out, unless the settings ask for it.

    Raises:
        SettingRefused: when two settings contradict each other.
        ArgumentRefused: when an argument is unknown, contradicts the deployment, or is refused by vLLM.
    """
    deployment, attention = deployment_of(settings, checkpoint), attention_of(settings, checkpoint)
    http = settings.server.arguments
    if quiet:
        http = {"uvicorn_log_level": "warning"} | http
    args = serve_arguments(
        model=settings.model,
        served_model_name=settings.served_model_name,
        deployment=deployment,
        attention=attention,
        engine=settings.engine,
        http=http,
    )
    reason = ""
    if settings.scaling.rope_type == AUTO and deployment.rotates:
        reason = f"auto: {derived(settings.scaling, checkpoint, settings.model).reason}"
        if settings.max_model_len is None:
            args.max_model_len = FIT_INTO_MEMORY
            reason += "; requests may be as long as the cache has room for"
    setattr(args, plugin.REQUEST_LOG, settings.log_requests)
    return Plan(deployment=deployment, attention=attention, args=args, reason=reason)

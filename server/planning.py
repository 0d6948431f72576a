"""Makes the plan of a start from settings and a checkpoint: `posenc serve` runs it, `check` and `flags` print it."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.arguments.engine_args import command_line, serve_arguments
from posenc_runtime.vllm_adapter.attention.choice import AttentionChoice
from posenc_runtime.vllm_adapter.checkpoints.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.compat.arguments import argument_names
from posenc_runtime.vllm_adapter.settings.api_keys import refuse_unreadable
from posenc_runtime.vllm_adapter.settings.completion import completed
from posenc_runtime.vllm_adapter.settings.derivation import seen_where_rotated
from server.settings import Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is going to be served.

    Attributes:
        remarks: lines for the user: what ``auto`` stands for and why, and what to change in the checkpoint.
        max_model_len: vLLM's argument; -1 for the longest request that the cache has room for.
    """

    settings: Settings
    deployment: Deployment
    attention: AttentionChoice
    remarks: tuple[str, ...]
    max_model_len: int

    def arguments(self, *, quiet: bool = True) -> argparse.Namespace:
        """The arguments of vLLM's server, checked by vLLM's own parser.

        Args:
            quiet: whether vLLM's access log is left out, unless the settings ask for it.

        Raises:
            ArgumentRefused: when an argument is unknown, contradicts the deployment, or is refused by vLLM.
            SettingRefused: when API keys cannot be read.
        """
        from server import plugin  # imports vLLM

        refuse_unreadable(self.settings.access)
        http = self.settings.server.arguments
        if quiet:
            http = {"uvicorn_log_level": "warning"} | http
        args = serve_arguments(model=self.settings.model, deployment=self.deployment, **self._given(http))
        is_json = self.settings.log_format == "json"
        setattr(
            args,
            plugin.REQUEST_LOG,
            "json" if is_json and self.settings.log_requests == "text" else self.settings.log_requests,
        )
        return args

    def command(self) -> list[str]:
        """The command with which plain vLLM serves the same deployment, as a list of words.

        Raises:
            ArgumentRefused: when an argument is unknown, or contradicts the deployment.
        """
        return command_line(self.settings.model, self.deployment, **self._given(self.settings.server.arguments))

    def _engine(self) -> dict[str, Any]:
        engine = self.settings.engine
        if self.settings.log_format == "json" and "logging_config" in argument_names()["engine"]:
            return {"logging_config": {"formatter": "json"}} | engine
        return engine

    def _given(self, http: dict[str, Any]) -> dict[str, Any]:
        return {
            "served_model_name": self.settings.served_model_name,
            "engine": self._engine(),
            "attention": self.attention,
            "http": http,
            "front_end": self.settings.front_end,
            "max_model_len": self.max_model_len,
        }


def planned(settings: Settings, checkpoint: Checkpoint | None) -> Plan:
    """Complete the settings from the checkpoint.

    Args:
        checkpoint: None where it cannot be read.

    Raises:
        SettingRefused: when two settings contradict each other, nobody knows the trained length, or the checkpoint's
            layers cannot have the attention that is asked for.
    """
    sections = completed(
        settings.scaling,
        settings.attention,
        checkpoint,
        model=settings.model,
        max_model_len=settings.max_model_len,
        engine=settings.engine,
    )
    remarks = []
    if sections.auto_reason is not None:
        has_room = "; requests may be as long as the cache has room for" if settings.max_model_len is None else ""
        remarks.append(f"auto: {sections.auto_reason}{has_room}")
    if checkpoint is not None and _scales_for_nothing(sections.deployment, checkpoint):
        remarks.append(f"scaling: {seen_where_rotated(checkpoint)}: leave scales out, and set rope_type to auto")
    if checkpoint is not None and checkpoint.added_yarn is not None:
        remarks.append(f"model: {checkpoint.added_yarn.advice}")
    return Plan(
        settings=settings,
        deployment=sections.deployment,
        attention=sections.attention,
        remarks=tuple(remarks),
        max_model_len=sections.max_model_len,
    )


def _scales_for_nothing(deployment: Deployment, checkpoint: Checkpoint) -> bool:
    """Whether requests get scales above 1 that they do not need."""
    return len(deployment.scales) > 1 and checkpoint.needs_no_scale(deployment.original_max_position_embeddings)

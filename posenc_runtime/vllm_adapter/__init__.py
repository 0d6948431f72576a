"""Posenc inside vLLM: the only package that imports vllm. vLLM loads it in every process by its entry point.

Folders follow the processes that run their code. Decision 74.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``; may be called any number of times in a process.

    Nothing is registered, and nothing of ours is imported, until an engine's configuration has a section of ours.
    """
    from posenc_runtime.vllm_adapter import hook

    hook.install(_configure)


def _configure(engine_args: Any, make: Callable[[Any], Any], serves: bool) -> Any:
    """Import what configures an engine only when an engine asks for us."""
    from posenc_runtime.vllm_adapter.engine_configuration import configure_for_vllm

    return configure_for_vllm(engine_args, make, serves)

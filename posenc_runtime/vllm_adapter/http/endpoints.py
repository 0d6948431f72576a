"""Our routes and reports in vLLM's API server, through its own interface for endpoint plugins.

vLLM loads entry points of ``vllm.endpoint_plugins`` only where ``VLLM_PLUGINS`` names them, and warns of all others at
every start. Ours are therefore in a group of their own, and we offer them to vLLM where an engine's configuration has a
section of ours.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

GROUP = "posenc.endpoint_plugins"


@functools.cache
def offer() -> None:
    """Have vLLM's API server take our endpoint plugins, beside those that it finds itself."""
    import vllm.plugins

    vllm.plugins.load_endpoint_plugins = with_ours(vllm.plugins.load_endpoint_plugins)


def with_ours(stock: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Wrap vLLM's function that loads endpoint plugins: add ours where the server has a task that they are for."""

    @functools.wraps(stock)
    def load_endpoint_plugins(supported_tasks: tuple[str, ...] | None = None) -> list[Any]:
        ours = [entry.load()() for entry in importlib.metadata.entry_points(group=GROUP)]
        fitting = [plugin for plugin in ours if set(plugin.required_tasks) & set(supported_tasks or ())]
        return [*stock(supported_tasks), *fitting]

    return load_endpoint_plugins

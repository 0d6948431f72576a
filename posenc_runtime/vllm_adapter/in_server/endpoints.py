"""Our routes and reports in vLLM's API server, through its own interface for endpoint plugins.

vLLM loads entry points of ``vllm.endpoint_plugins`` only where ``VLLM_PLUGINS`` names them, and warns of all others at
every start. Ours are therefore in a group of their own, and we offer them to vLLM where an engine's configuration has a
section of ours.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any

from posenc_runtime.vllm_adapter.contract.errors import Unsupported

_FOLDER = "vllm.entrypoints.serve.instrumentator"
_NAMES = ("swagger-ui-bundle.js", "swagger-ui.css")
GROUP = "posenc.endpoint_plugins"


def swagger_files() -> list[pathlib.Path]:
    """Script and style sheet of Swagger UI; none where this vLLM does not have both."""
    spec = importlib.util.find_spec(_FOLDER)
    folders = [pathlib.Path(place) / "static" for place in (spec and spec.submodule_search_locations) or ()]
    found = [folder / name for folder in folders for name in _NAMES if (folder / name).is_file()]
    return found if len(found) == len(_NAMES) else []


@functools.cache
def offer() -> None:
    """Have vLLM's API server take our endpoint plugins, beside those that it finds itself."""
    import vllm.plugins

    vllm.plugins.load_endpoint_plugins = with_ours(vllm.plugins.load_endpoint_plugins)


def with_ours(stock: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Wrap vLLM's function that loads endpoint plugins: add ours, which check what clients ask for.

    Raises, when called:
        Unsupported: when the server has no task that ours are for; it would check nothing.
    """

    @functools.wraps(stock)
    def load_endpoint_plugins(supported_tasks: tuple[str, ...] | None = None) -> list[Any]:
        ours = [entry.load()() for entry in importlib.metadata.entry_points(group=GROUP)]
        for plugin in ours:
            if set(plugin.required_tasks).isdisjoint(supported_tasks or ()):
                raise Unsupported(
                    f"posenc serves models for the tasks {', '.join(plugin.required_tasks)}, got a server for "
                    f"{', '.join(supported_tasks or ())}: serve it with vLLM, without posenc"
                )
        return [*stock(supported_tasks), *ours]

    return load_endpoint_plugins

"""The hook into vLLM: we help to configure each engine whose ``additional_config`` has a section of ours.

We leave every other engine, on any version of vLLM, as it is. Decision 57.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from posenc_runtime.vllm_adapter.contract.names import ALL_SECTIONS

# Takes the engine's arguments, vLLM's own way from arguments to a configuration, and whether the engine is that of an
# API server.
Configure = Callable[[Any, Callable[[Any], Any], bool], Any]


def install(configure: Configure) -> None:
    """Wrap ``EngineArgs.create_engine_config``, to look for our sections in the arguments of every engine.

    Args:
        configure: makes the configuration of an engine that has a section of ours.
    """
    try:
        from vllm.engine.arg_utils import EngineArgs

        stock = EngineArgs.create_engine_config
    except (ImportError, AttributeError):
        return  # this vLLM configures engines in another way: there are no sections to look for
    if not hasattr(stock, "posenc"):
        EngineArgs.create_engine_config = _looking_for_sections(stock, configure)


def _looking_for_sections(stock: Callable[..., Any], configure: Configure) -> Callable[..., Any]:
    @functools.wraps(stock)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        additional = getattr(self, "additional_config", None)
        if not isinstance(additional, Mapping) or additional.keys().isdisjoint(ALL_SECTIONS):
            return stock(self, *args, **kwargs)
        usage = getattr(kwargs.get("usage_context"), "name", None)
        return configure(self, lambda completed: stock(completed, *args, **kwargs), usage == "OPENAI_API_SERVER")

    create_engine_config.posenc = True  # type: ignore[attr-defined]
    return create_engine_config

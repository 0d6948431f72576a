"""The hook into vLLM: we help to configure each engine whose ``additional_config`` has a section of ours.

We leave every other engine, on any version of vLLM, as it is. Decision 57.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

# Keys of additional_config. They are here because the modules that read these sections take long to import.
DEPLOYMENT_SECTION, ATTENTION_SECTION = "posenc", "posenc_attention"
ACCESS_SECTION, LIMITS_SECTION, HEALTH_SECTION = "posenc_access", "posenc_limits", "posenc_health"
ALL_SECTIONS = (DEPLOYMENT_SECTION, ATTENTION_SECTION, ACCESS_SECTION, LIMITS_SECTION, HEALTH_SECTION)


def install() -> None:
    """Wrap ``EngineArgs.create_engine_config``, to look for our sections in the arguments of every engine."""
    try:
        from vllm.engine.arg_utils import EngineArgs

        stock = EngineArgs.create_engine_config
    except (ImportError, AttributeError):
        return  # this vLLM configures engines in another way: there are no sections to look for
    if not hasattr(stock, "posenc"):
        EngineArgs.create_engine_config = _looking_for_sections(stock)


def _looking_for_sections(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        additional = getattr(self, "additional_config", None)
        if not isinstance(additional, Mapping) or additional.keys().isdisjoint(ALL_SECTIONS):
            return stock(self, *args, **kwargs)
        from posenc_runtime.vllm_adapter.one_flag import configured

        usage = getattr(kwargs.get("usage_context"), "name", None)
        return configured(
            self, lambda completed: stock(completed, *args, **kwargs), serves=usage == "OPENAI_API_SERVER"
        )

    create_engine_config.posenc = True  # type: ignore[attr-defined]
    return create_engine_config

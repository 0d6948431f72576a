"""A request gets the salt of its regime where it arrives: before vLLM hashes its prompt, and beside the engine's loop.

What decides a request's first scale is known then: the length of its prompt, ``max_tokens`` and what it asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from posenc_runtime.vllm_adapter import compat

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.core import EngineCore


@functools.cache
def salt_on_arrival() -> None:
    """Let the engines of this process ask our connector, where they have it.

    vLLM calls ``preprocess_add_request`` on the thread that takes requests in, and hashes prompts in there.
    """
    compat.verify_core()
    from vllm.v1.engine.core import EngineCore

    EngineCore.preprocess_add_request = salting(EngineCore.preprocess_add_request)


def salting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.preprocess_add_request`` for engines that may have our connector."""

    @functools.wraps(stock)
    def preprocess_add_request(self: EngineCore, request: EngineCoreRequest) -> Any:
        half = getattr(self.scheduler.get_kv_connector(), "scheduler_half", None)
        if half is None:
            return stock(self, request)
        half.arriving(request)
        try:
            return stock(self, request)
        except BaseException:
            half.turned_away(request.request_id)
            raise

    return preprocess_add_request

"""Puts the regime of an arriving request into its ``cache_salt``, before vLLM hashes its prompt.

This runs on the thread that takes requests in, so it does not delay the engine's loop. All that decides a request's
first scale is known by then: the length of its prompt, ``max_tokens`` and ``posenc_on_crossing``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from posenc_runtime.vllm_adapter import releases

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.core import EngineCore


@functools.cache
def salt_on_arrival() -> None:
    """Wrap ``EngineCore.preprocess_add_request``, so that engines with our connector put the regime into the salt.

    vLLM calls this method on the thread that takes requests in; the method hashes the prompt.
    """
    releases.verify_core()
    from vllm.v1.engine.core import EngineCore

    EngineCore.preprocess_add_request = salting(EngineCore.preprocess_add_request)


def salting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``EngineCore.preprocess_add_request``; in an engine without our connector, vLLM's own runs unchanged."""

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

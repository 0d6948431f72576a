"""Stops the engine of a server: once its requests have ended, or because it has ended by itself."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

from posenc_runtime.vllm_adapter.http.draining import Draining, refuse_late, refuse_unbegun

logger = logging.getLogger("vllm.posenc")

_ENGINE_SECONDS = 5  # for an engine without requests to give back what it holds; it is killed then
_LAST_ANSWERS_SECONDS = 5  # for clients to read the ends of their answers, after the engine has stopped
ENDED_BY_ITSELF = "the engine ended while it served: the cause is above"


def drain_before_stop(engine: Any, draining: Draining, ended: Callable[[bool], None]) -> None:
    """Have a server that is told to stop drain first; one whose engine has ended by itself ends with status 1.

    vLLM's server itself stops its engine at once, or has the engine's core drain while it still accepts requests, which
    the core then rejects.

    Args:
        engine: vLLM's client of a running engine.
        ended: called once, when the engine is stopped, with whether it had ended by itself before.
    """
    stock, loop, told = engine.shutdown, asyncio.get_running_loop(), [ended]
    refuse_late(engine, draining)

    @functools.wraps(stock)
    def shutdown(*args: Any, **kwargs: Any) -> None:
        if not told:
            stock(*args, **kwargs)
            return
        tell, is_serving = told.pop(), _runs_elsewhere(loop)
        if is_serving and not engine.errored:
            _drain(loop, draining.drain(engine, engine.vllm_config.shutdown_timeout))
        by_itself = bool(engine.errored)
        tell(by_itself)
        stock(timeout=_ENGINE_SECONDS)
        if is_serving:
            loop.call_soon_threadsafe(_end_answers, engine)
        elif by_itself:
            raise SystemExit(ENDED_BY_ITSELF)

    engine.shutdown = shutdown


def bound_last_answers(server: Any) -> None:
    """Have a server that stops wait for clients that do not read their answers, but not without end.

    Args:
        server: uvicorn's.
    """
    if server.config.timeout_graceful_shutdown is None:
        server.config.timeout_graceful_shutdown = _LAST_ANSWERS_SECONDS


def _runs_elsewhere(loop: asyncio.AbstractEventLoop) -> bool:
    """vLLM stops its engine from a thread while it serves, and from the event loop's own when it has stopped to."""
    try:
        return asyncio.get_running_loop() is not loop and loop.is_running()
    except RuntimeError:
        return loop.is_running()


def _drain(loop: asyncio.AbstractEventLoop, draining: Any) -> None:
    try:
        asyncio.run_coroutine_threadsafe(draining, loop).result()
    except Exception:  # a server that cannot drain must stop nevertheless
        logger.exception("the requests under way could not be waited for")


def _end_answers(engine: Any) -> None:
    """End what came after the engine had no more requests; without us, the server would wait for an answer."""
    requests = engine.output_processor
    refuse_unbegun(requests.request_states)
    requests.abort_requests(list(requests.request_states), internal=True)

"""Stops a server, after its requests have ended, or after its engine has ended by itself."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

logger = logging.getLogger("vllm.posenc")

DEFAULT_SECONDS = 20  # with what follows, less than the 30 s that Kubernetes gives
_LOOK_SECONDS = 0.05
CUT = "the server is shutting down and did not begin to answer this request: send it again"
_ENGINE_SECONDS = 5  # for an engine without requests to give back what it holds; it is killed then
_LAST_ANSWERS_SECONDS = 5  # for clients to read the ends of their answers, after the engine has stopped
ENDED_BY_ITSELF = "the engine ended while it served: the cause is above"


class Draining:
    """Whether a server drains, and what it still waits for. All of it is used in the server's event loop only.

    Attributes:
        active: whether the server has been told to stop.
        over: set when the drain is over; requests that have not reached the engine by then do not run.
        seconds: that requests have to end by themselves.
    """

    def __init__(self) -> None:
        self.active, self.seconds = False, 0.0
        self._num_calls = 0
        self._at_once, self.over = asyncio.Event(), asyncio.Event()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """The context of one HTTP request; the drain waits until it ends."""
        self._num_calls += 1
        try:
            yield
        finally:
            self._num_calls -= 1

    async def drain(self, engine: Any, seconds: float) -> None:
        """Wait until no request runs or the time is over, then end what still runs with what it has said so far.

        A second signal ends the wait. A request without any token fails with status 503, so that its client can send it
        elsewhere.

        Args:
            engine: vLLM's client of a running engine.
        """
        self.active, self.seconds = True, seconds
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._at_once.set)
        if seconds and (number := self._num_running(engine)):
            what = "1 request runs" if number == 1 else f"{number} requests run"
            logger.info("stopping: %s, for up to %g s; another signal ends them at once", what, seconds)
        deadline = time.monotonic() + seconds
        while self._num_running(engine) and not engine.errored and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._at_once.wait(), _LOOK_SECONDS)
                break
        self.over.set()
        states = engine.output_processor.request_states
        refuse_unbegun(states)
        await engine.abort(list(states), internal=True)

    def _num_running(self, engine: Any) -> int:
        """Requests over HTTP whose answers are not sent; requests of the engine that no HTTP request waits for, too."""
        return max(self._num_calls, len(engine.output_processor.request_states))


def refuse_unbegun(states: Mapping[str, Any]) -> None:
    """Fail the requests that have no token yet.

    Args:
        states: vLLM's, of all requests that the engine has, by the names of their sequences.
    """
    begun = {id(state.queue) for state in states.values() if not state.is_prefilling}
    for state in states.values():
        if state.queue is not None and id(state.queue) not in begun:
            state.queue.put(_cut())


def refuse_late(engine: Any, draining: Draining) -> None:
    """Fail each request that reaches the engine after the drain, in the same way as the requests that were cut.

    Args:
        engine: vLLM's client of a running engine; its ``add_request`` is wrapped.
    """
    stock = engine.add_request

    @functools.wraps(stock)
    async def add_request(*args: Any, **kwargs: Any) -> Any:
        if draining.over.is_set():
            raise _cut()
        return await stock(*args, **kwargs)

    engine.add_request = add_request


def _cut() -> Exception:
    from vllm.exceptions import GracefulHTTPError

    failed: Exception = GracefulHTTPError(CUT, 503)
    return failed


def drain_before_stop(engine: Any, draining: Draining, ended: Callable[[bool], None]) -> None:
    """Let a server drain before it stops. If its engine has ended by itself, the server ends with status 1.

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
    """Let a stopping server wait for clients that do not read their answers, but only for a limited time.

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
        logger.exception("the server cannot wait for the requests under way")


def _end_answers(engine: Any) -> None:
    """End what came after the engine had no more requests; without us, the server would wait for an answer."""
    requests = engine.output_processor
    refuse_unbegun(requests.request_states)
    requests.abort_requests(list(requests.request_states), internal=True)

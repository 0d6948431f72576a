"""A server that is told to stop waits for its requests, for a time; then it cuts them, and says so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import types
from collections.abc import Iterator
from typing import Any

import pytest

from posenc_runtime.vllm_adapter.in_server.stopping import Draining, refuse_late


class Engine:
    """An engine with requests; it notes which of them are aborted."""

    def __init__(self, **requests: bool) -> None:
        self.errored, self.aborted = False, []
        states = {name: state(is_prefilling=not has_token) for name, has_token in requests.items()}
        self.output_processor = types.SimpleNamespace(request_states=states)

    async def abort(self, names: list[str], *, internal: bool) -> None:
        assert internal
        self.aborted += names
        self.output_processor.request_states.clear()

    async def add_request(self, name: str) -> str:
        return f"{name} runs"


def state(*, is_prefilling: bool) -> Any:
    said: list[Any] = []
    return types.SimpleNamespace(is_prefilling=is_prefilling, queue=types.SimpleNamespace(put=said.append, said=said))


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def later(seconds: float, then: Any) -> None:
    await asyncio.sleep(seconds)
    then()


async def test_requests_that_end_in_time_are_not_touched() -> None:
    engine, draining = Engine(one=True), Draining()
    assert not draining.active
    async with asyncio.TaskGroup() as group:
        group.create_task(draining.drain(engine, 60))
        group.create_task(later(0.2, engine.output_processor.request_states.clear))
    assert draining.active and engine.aborted == []


async def test_an_answer_that_is_not_sent_yet_is_waited_for() -> None:
    engine, draining, ended = Engine(), Draining(), []
    with contextlib.ExitStack() as call:
        call.enter_context(draining.call())
        async with asyncio.TaskGroup() as group:
            drained = group.create_task(draining.drain(engine, 60))
            drained.add_done_callback(ended.append)
            await asyncio.sleep(0.2)
            assert not ended
            call.close()


async def test_what_runs_longer_ends_with_what_it_said_and_what_said_nothing_is_an_error() -> None:
    engine, draining = Engine(begun=True, waiting=False), Draining()
    begun, waiting = engine.output_processor.request_states.values()
    await draining.drain(engine, 0.1)
    assert engine.aborted == ["begun", "waiting"]
    assert begun.queue.said == []
    (error,) = waiting.queue.said
    assert error.http_status == 503 and "send it again" in str(error)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_another_signal_ends_the_wait(number: signal.Signals) -> None:
    engine, draining = Engine(one=True), Draining()
    async with asyncio.TaskGroup() as group:
        group.create_task(draining.drain(engine, 600))
        await asyncio.sleep(0.1)
        assert engine.aborted == []
        os.kill(os.getpid(), number)
    assert engine.aborted == ["one"]


async def test_an_engine_that_dies_meanwhile_is_not_waited_for() -> None:
    engine, draining = Engine(one=True), Draining()
    engine.errored = True
    await draining.drain(engine, 600)


async def test_a_request_that_reaches_the_engine_when_the_drain_is_over_is_refused() -> None:
    engine, draining = Engine(), Draining()
    refuse_late(engine, draining)
    draining.active = True
    assert await engine.add_request("early") == "early runs"
    await draining.drain(engine, 600)
    with pytest.raises(Exception, match="send it again") as error:
        await engine.add_request("late")
    assert vars(error.value)["http_status"] == 503

"""An engine that does not answer is noticed, and one that answers again, too."""

from __future__ import annotations

import asyncio

import pytest

from posenc_runtime.vllm_adapter.in_server import engine_state
from posenc_runtime.vllm_adapter.in_server.engine_state import Pulse


class Engine:
    def __init__(self) -> None:
        self.errored, self.num_asked, self.sleeps = False, 0, False
        self.answers = asyncio.Event()

    async def is_sleeping(self) -> bool:
        self.num_asked += 1
        await self.answers.wait()
        if self.num_asked == 2:
            raise RuntimeError("Server shutting down")
        return self.sleeps


async def test_one_question_is_under_way_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_state, "_PAUSE_SECONDS", 0.01)
    engine = Engine()
    asked = Pulse(engine)
    assert asked.unanswered_seconds == 0
    asked.start()
    await asyncio.sleep(0.1)
    assert engine.num_asked == 1 and asked.unanswered_seconds > 0.05
    engine.sleeps = True
    engine.answers.set()
    await asyncio.sleep(0.1)
    assert engine.num_asked > 2 and asked.unanswered_seconds < 0.05 and asked.sleeps
    engine.errored = True
    assert asked._asking is not None
    await asyncio.wait_for(asked._asking, 5)

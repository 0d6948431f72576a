"""Asks an engine's core again and again whether it runs: one that is stuck in a step, or frozen, does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

_PAUSE_SECONDS = 1.0


class Pulse:
    """What the engine's core answered last. One question at most is under way.

    Args:
        engine: vLLM's client of a running engine; with several parallel engines, all are asked.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._asked: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self.sleeps = False

    def start(self) -> None:
        """Begin to ask, in the running event loop."""
        self._asking = asyncio.create_task(self._ask())

    @property
    def unanswered_seconds(self) -> float:
        """For how long the question under way has had no answer; 0 where there is none."""
        return 0.0 if self._asked is None else time.monotonic() - self._asked

    async def _ask(self) -> None:
        while not self._engine.errored:
            self._asked = time.monotonic()
            with contextlib.suppress(Exception):  # an engine that is about to stop refuses to answer
                self.sleeps = await self._engine.is_sleeping()
            self._asked = None
            await asyncio.sleep(_PAUSE_SECONDS)

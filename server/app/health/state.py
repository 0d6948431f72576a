"""The state of a server, as its probes report it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

from posenc_runtime.vllm_adapter.in_server.engine_state import NoToken, Pulse, one_token
from posenc_runtime.vllm_adapter.in_server.stopping import Draining

_SHOWN_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Health:
    """The state of a running server.

    Attributes:
        engine: vLLM's client of its engine.
        stalled_seconds: for how long the engine may leave a question unanswered and still count as ready.
    """

    engine: Any
    draining: Draining
    pulse: Pulse
    stalled_seconds: float

    def why_not_live(self) -> str | None:
        """Why the server must be started anew; None where it need not."""
        return "the engine has ended" if self.engine.errored else None

    def why_not_ready(self) -> str | None:
        """Why no new requests should be sent here; None where they may."""
        if reason := self.why_not_live():
            return reason
        if self.draining.active:
            return "the server is shutting down"
        if (seconds := self.pulse.unanswered_seconds) > self.stalled_seconds:
            return f"the engine has not answered for {seconds:.0f} s, more than health.stalled_seconds"
        if self.pulse.sleeps:
            return "the engine is paused or asleep"
        return None

    async def shown(self, show: Callable[[bool], None]) -> None:
        """Show again and again whether the server is ready."""
        while True:
            show(self.why_not_ready() is None)
            await asyncio.sleep(_SHOWN_SECONDS)

    async def why_no_token(self) -> str | None:
        """Why the engine does not generate; None where it does. It is asked for one token."""
        try:
            await one_token(self.engine, self.stalled_seconds)
        except NoToken as error:
            return str(error)
        return None


class OneAtATime:
    """Runs a coroutine; whoever asks while it runs gets the same result."""

    def __init__(self) -> None:
        self._running: asyncio.Task[str | None] | None = None

    async def result(self, start: Callable[[], Coroutine[Any, Any, str | None]]) -> str | None:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(start())
        return await asyncio.shield(self._running)

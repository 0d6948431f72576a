"""A streamed completion as its client sees it: when each piece came, and how many tokens had been said by then."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.benchmarks.engine_process import EngineFailed


@dataclasses.dataclass
class Stream:
    """A streamed completion.

    Attributes:
        times: when each piece of the answer came, and
        said: how many tokens the answer then had. A piece has several where the client is slower than the engine.
        news: set by each of them, and by the end.
    """

    http: httpx.AsyncClient
    prompt: list[int]
    max_tokens: int
    xargs: dict[str, str] | None = None
    times: list[float] = dataclasses.field(default_factory=list)
    said: list[int] = dataclasses.field(default_factory=list)
    news: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    ended: bool = False
    crossings: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    async def read(self) -> None:
        """Send the request, and read its answer to the end."""
        try:
            await self._read()
        finally:
            self.ended = True
            self.news.set()

    async def _read(self) -> None:
        body: dict[str, Any] = {
            "model": "model",
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self.xargs:
            body["vllm_xargs"] = self.xargs
        async with self.http.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                raise EngineFailed(
                    f"the server answered {answer.status_code}: {(await answer.aread()).decode()[:2000]}"
                )
            async for event in _events(answer):
                if event.get("choices"):
                    self.times.append(time.perf_counter())
                    self.said.append(event["usage"]["completion_tokens"])
                    self.news.set()
                if params := event.get("kv_transfer_params"):
                    self.crossings = params["posenc"]["crossings"]

    def when(self, tokens: int) -> float:
        """The time at which so many had been said."""
        return next(time for time, said in zip(self.times, self.said, strict=True) if said >= tokens)

    def gaps(self, since: float, until: float) -> list[float]:
        """Seconds between pieces, of all pairs between which some of this stretch of time lies."""
        pairs = itertools.pairwise(self.times)
        return [after - before for before, after in pairs if before <= until and after >= since]


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        said = line.removeprefix("data: ")
        if said.startswith("{"):
            yield json.loads(said)

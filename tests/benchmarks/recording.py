"""A long and a short request side by side: what happened to them when, and which KV blocks they held."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.benchmarks.passkey_client import scale_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_POLL_SECONDS = 0.1  # more often would take the server's time from what is recorded
_AFTERWARDS_SECONDS = 0.6


@dataclasses.dataclass
class Request:
    """One request and its course; all times are seconds since the recording began.

    Attributes:
        sent: when it was sent.
        tokens: when each piece of the answer came.
        scale: what the response named.
    """

    name: str
    prompt: str
    prompt_tokens: int
    new_tokens: int
    sent: float = 0.0
    tokens: list[float] = dataclasses.field(default_factory=list)
    scale: float | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.new_tokens


@dataclasses.dataclass
class BlockLevels:
    """``posenc_kv_blocks`` over time: the same index of every list is the same poll."""

    times: list[float] = dataclasses.field(default_factory=list)
    by_scale: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def add(self, at: float, metrics: str) -> None:
        """Take in what ``/metrics`` said."""
        levels: dict[str, float] = {}
        for family in text_string_to_metric_families(metrics):
            for sample in family.samples:
                if sample.name == "posenc_kv_blocks":
                    scale = sample.labels["scale"]
                    levels[scale] = levels.get(scale, 0.0) + sample.value
        for scale in levels:
            self.by_scale.setdefault(scale, [0.0] * len(self.times))
        for scale, series in self.by_scale.items():
            series.append(levels.get(scale, 0.0))
        self.times.append(at)


@dataclasses.dataclass
class Recording:
    """Everything that the picture shows."""

    long: Request
    short: Request
    blocks: BlockLevels = dataclasses.field(default_factory=BlockLevels)


async def record(
    address: str, model: str, long: Request, short: Request, *, short_after: float, advance: Callable[[], None]
) -> Recording:
    """Send the long request, and the short one while the long one is answered.

    Args:
        short_after: seconds from the long request's first token.
        advance: called for every piece of an answer.
    """
    from openai import AsyncOpenAI

    recording = Recording(long, short)
    answering = asyncio.Event()
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", timeout=600, max_retries=0) as client:
        # Once, so that the first request of the picture does not pay for what a server does once.
        await client.completions.create(model=model, prompt="Hello", max_tokens=4)
        began = time.monotonic()

        def long_advanced() -> None:
            advance()
            answering.set()

        polling = asyncio.create_task(_poll(address, recording.blocks, began))
        running = asyncio.create_task(_send(client, model, long, began, long_advanced))
        waiting = asyncio.create_task(answering.wait())
        try:
            await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                # over before its first token: tell why
                running.result()
            await asyncio.sleep(short_after)
            await _send(client, model, short, began, advance)
            await running
            await asyncio.sleep(_AFTERWARDS_SECONDS)
        finally:
            for task in (polling, running, waiting):
                task.cancel()
            await asyncio.gather(polling, running, waiting, return_exceptions=True)
    return recording


async def _send(client: AsyncOpenAI, model: str, request: Request, began: float, advance: Callable[[], None]) -> None:
    request.sent = time.monotonic() - began
    stream = await client.completions.create(
        model=model,
        prompt=request.prompt,
        max_tokens=request.new_tokens,
        temperature=0,
        stream=True,
        # the whole answer, whatever the model thinks of it
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        if chunk.choices:
            request.tokens.append(time.monotonic() - began)
            advance()
        scale = scale_of(chunk.model_extra)
        request.scale = request.scale if scale is None else scale


async def _poll(address: str, levels: BlockLevels, began: float) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        while True:
            response = await client.get(f"{address}/metrics")
            levels.add(time.monotonic() - began, response.text)
            await asyncio.sleep(_POLL_SECONDS)

"""A crossing as other clients of the server notice it: their time between tokens, over the same without a crossing."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx
import yaml

from tests.benchmarks.engine_process import EngineFailed
from tests.benchmarks.gpu.rows import Row, at_most
from tests.benchmarks.gpu_engine.part import Found, Part, Stage, tokens
from tests.benchmarks.gpu_engine.sizes import SCALES, Sizes
from tests.benchmarks.intervals import median_and_quartiles, paired_ratio
from tests.benchmarks.servers import Command, ServerFailed, running

How = Literal["rerotate", "pin"]
_SECONDS = 300.0  # that an answer may take


def rows(sizes: Sizes) -> list[Row]:
    name = f"crossing at {sizes.trained:,} tokens, served"
    return [
        Row(name, "others' p99 inter-token latency, over the same without a crossing", at_most(1.5)),
        Row(name, "others' p99 inter-token latency, ms"),
    ]


def measure(stage: Stage) -> Found:
    sizes = stage.sizes
    settings = {
        "model": str(stage.model),
        "served_model_name": "model",
        "scaling": {
            "rope_type": "yarn",
            "scales": list(SCALES),
            "headroom_tokens": sizes.before,
            "rerotate_budget_tokens": sizes.budget,
        },
        "engine": sizes.crossing_arguments,
    }
    file = stage.folder / "served.yaml"
    file.write_text(yaml.safe_dump(settings))
    command = Command(
        (sys.executable, "-m", "server", "serve", "--config", str(file), "--set", "server.port={port}"),
        {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, stage.cores))} if stage.cores else {},
    )
    try:
        with running(command) as address:
            noticed = asyncio.run(_rounds(address, sizes))
    except (ServerFailed, httpx.HTTPError, TimeoutError) as error:
        raise EngineFailed("\n".join([str(error), *getattr(error, "__notes__", ())])) from error
    crossing, pinned = ([_p99(one) for one in noticed[how]] for how in ("rerotate", "pin"))
    usual = {how: 1000 * statistics.median(itertools.chain(*found)) for how, found in noticed.items()}
    ratio, latency = rows(sizes)
    measured = [
        ratio.measured(
            paired_ratio(crossing, pinned),
            remark=f"medians of {usual['rerotate']:.2f} and {usual['pin']:.2f} ms; {sizes.others} others, from the "
            f"long request's first token to its last, {sizes.before + sizes.after} of them",
        ),
        latency.measured(median_and_quartiles([1000 * seconds for seconds in crossing])),
    ]
    return measured, {"inter_token_seconds": noticed}


async def _rounds(address: str, sizes: Sizes) -> dict[str, list[list[float]]]:
    """Of each repetition, the others' inter-token latencies: where the long request crosses, and where it does not."""
    noticed: dict[str, list[list[float]]] = {"rerotate": [], "pin": []}
    long = tokens(sizes, sizes.trained - sizes.before, "long")
    async with httpx.AsyncClient(base_url=address, timeout=_SECONDS, limits=httpx.Limits(max_connections=None)) as http:
        for repetition in range(sizes.repetitions + 1):
            orders: tuple[How, How] = ("rerotate", "pin") if repetition % 2 else ("pin", "rerotate")
            for how in orders:
                found = await _round(http, sizes, long, how, seed=f"{how}:{repetition}")
                if repetition:  # the first prefills the long prompt, which is cached from then on
                    noticed[how].append(found)
    return noticed


async def _round(http: httpx.AsyncClient, sizes: Sizes, long: list[int], how: How, *, seed: str) -> list[float]:
    others = [
        Stream(http, tokens(sizes, sizes.others_tokens, f"{seed}:{number}"), sizes.others_new)
        for number in range(sizes.others)
    ]
    reading = [asyncio.create_task(other.read()) for other in others]
    try:
        await _one_more(others)
        watched = Stream(http, long, sizes.before + sizes.after, {"posenc_on_crossing": how})
        await watched.read()
        await _one_more(others)
        ended = [other for other in others if other.ended]
    finally:
        for task in reading:
            task.cancel()
        results = await asyncio.gather(*reading, return_exceptions=True)
    if [crossing["at"] for crossing in watched.crossings] != ([sizes.trained] if how == "rerotate" else []):
        raise EngineFailed(f"{how}: the long request's crossings were {watched.crossings}")
    since, until = watched.times[0], watched.times[-1]
    found = [gap for other in others for gap in other.gaps(since, until)]
    if ended:
        raise EngineFailed(f"others ended before the long request did: {results}")
    return found


async def _one_more(streams: list[Stream]) -> None:
    """Wait until each has said one more thing, or has ended."""
    going_on = [stream for stream in streams if not stream.ended]
    for stream in going_on:
        stream.news.clear()
    await asyncio.wait_for(asyncio.gather(*(stream.news.wait() for stream in going_on)), _SECONDS)


@dataclasses.dataclass
class Stream:
    """A streamed completion.

    Attributes:
        times: when each piece of the answer came.
        news: set by each of them, and by the end.
    """

    http: httpx.AsyncClient
    prompt: list[int]
    max_tokens: int
    xargs: dict[str, str] | None = None
    times: list[float] = dataclasses.field(default_factory=list)
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
        }
        if self.xargs:
            body["vllm_xargs"] = self.xargs
        async with self.http.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                raise EngineFailed(
                    f"the server answered {answer.status_code}: {(await answer.aread()).decode()[:2000]}"
                )
            async for said in _events(answer):
                if said.get("choices"):
                    self.times.append(time.perf_counter())
                    self.news.set()
                if params := said.get("kv_transfer_params"):
                    self.crossings = params["posenc"]["crossings"]

    def gaps(self, since: float, until: float) -> list[float]:
        """Seconds between pieces, of all pairs between which some of this stretch of time lies."""
        pairs = itertools.pairwise(self.times)
        return [after - before for before, after in pairs if before <= until and after >= since]


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        said = line.removeprefix("data: ")
        if said.startswith("{"):
            yield json.loads(said)


def _p99(seconds: list[float]) -> float:
    ordered = sorted(seconds)
    return ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)]


PART = Part("served", rows, measure)

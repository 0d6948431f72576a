"""A crossing as other clients of the server notice it: their time between tokens, over the same without a crossing."""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from typing import Literal

import httpx
import yaml

from tests.benchmarks.engine_process import EngineFailed
from tests.benchmarks.gpu.rows import Row, at_most
from tests.benchmarks.gpu_engine.part import Found, Part, Stage, tokens
from tests.benchmarks.gpu_engine.sizes import SCALES, Sizes
from tests.benchmarks.gpu_engine.stream import Stream
from tests.benchmarks.intervals import median_and_quartiles, paired_ratio
from tests.benchmarks.servers import Command, running

How = Literal["rerotate", "pin"]


def rows(sizes: Sizes) -> list[Row]:
    name = f"crossing at {sizes.trained:,} tokens, served"
    latency = f"others' p99 inter-token latency within {sizes.window} tokens of it"
    return [
        Row(name, f"{latency}, over the same without a crossing", at_most(1.5)),
        Row(name, f"{latency}, ms"),
        Row(name, "longest gap of the others that overlaps the crossing, over their median gap", at_most(2)),
    ]


@dataclasses.dataclass(frozen=True)
class Noticed:
    """What the others notice of a long request.

    Attributes:
        gaps: seconds between their pieces while it says ``window`` tokens before the crossing, and as many after.
        longest: seconds of the longest that overlaps the crossing itself: from its last token before to the next.
    """

    gaps: list[float]
    longest: float

    @classmethod
    def by(cls, others: Sequence[Stream], long: Stream, sizes: Sizes) -> Noticed:
        """Of a request that does not cross, the same tokens are looked at."""
        last = sizes.before + 1  # the token at the trained length has been said; the next one needs another scale
        overlapping = [gap for other in others for gap in other.gaps(long.when(last), long.when(last + 1))]
        since, until = long.when(last - sizes.window), long.when(last + sizes.window)
        return cls([gap for other in others for gap in other.gaps(since, until)], max(overlapping))

    @property
    def p99(self) -> float:
        ordered = sorted(self.gaps)
        return ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)]

    @property
    def longest_over_median(self) -> float:
        return self.longest / statistics.median(self.gaps)


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
    file = stage.model.with_name("served.yaml")
    file.write_text(yaml.safe_dump(settings))
    command = Command(
        (sys.executable, "-m", "server", "serve", "--config", str(file), "--set", "server.port={port}"),
        {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, stage.cores))} if stage.cores else {},
    )
    with running(command, log=stage.folder / "served.log", start_seconds=stage.patience()) as address:
        noticed = asyncio.run(_rounds(address, stage))
        if noticed["pin"]:
            yield (
                _answers(noticed, sizes),
                {how: list(map(dataclasses.asdict, found)) for how, found in noticed.items()},
            )


def _answers(noticed: dict[How, list[Noticed]], sizes: Sizes) -> list[Row]:
    crossing, pinned = noticed["rerotate"], noticed["pin"]
    usual = {how: 1000 * statistics.median(gap for one in found for gap in one.gaps) for how, found in noticed.items()}
    besides = median_and_quartiles([one.longest_over_median for one in pinned])
    ratio, latency, longest = rows(sizes)
    return [
        ratio.measured(
            paired_ratio([one.p99 for one in crossing], [one.p99 for one in pinned]),
            remark=f"medians of {usual['rerotate']:.2f} and {usual['pin']:.2f} ms; {sizes.others} others, "
            f"{len(crossing[0].gaps)} gaps in the first repetition",
        ),
        latency.measured(median_and_quartiles([1000 * one.p99 for one in crossing])),
        longest.measured(
            median_and_quartiles([one.longest_over_median for one in crossing]),
            remark=f"{besides:.2f} at the same tokens of a request that does not cross",
        ),
    ]


async def _rounds(address: str, stage: Stage) -> dict[How, list[Noticed]]:
    """Of each repetition, what the others notice where the long request crosses, and where it does not."""
    sizes = stage.sizes
    noticed: dict[How, list[Noticed]] = {"rerotate": [], "pin": []}
    long = tokens(sizes, sizes.trained - sizes.before, "long")
    async with httpx.AsyncClient(base_url=address, timeout=None, limits=httpx.Limits(max_connections=None)) as http:
        for repetition in range(sizes.repetitions + 1):
            if not stage.goes_on():
                break
            orders: tuple[How, How] = ("rerotate", "pin") if repetition % 2 else ("pin", "rerotate")
            for how in orders:
                seconds = stage.patience()
                try:
                    async with asyncio.timeout(seconds):
                        found = await _round(http, sizes, long, how, seed=f"{how}:{repetition}")
                except TimeoutError:
                    why = f"{how}: the long request must be answered within {seconds:.0f} s and was not"
                    raise EngineFailed(why) from None
                if repetition:  # the first prefills the long prompt, which is cached from then on
                    noticed[how].append(found)
    return noticed


async def _round(http: httpx.AsyncClient, sizes: Sizes, long: list[int], how: How, *, seed: str) -> Noticed:
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
    if ended:
        raise EngineFailed(f"others ended before the long request did: {results}")
    if [crossing["at"] for crossing in watched.crossings] != ([sizes.trained] if how == "rerotate" else []):
        raise EngineFailed(f"{how}: the long request's crossings were {watched.crossings}")
    return Noticed.by(others, watched, sizes)


async def _one_more(streams: list[Stream]) -> None:
    """Wait until each has said one more thing, or has ended."""
    going_on = [stream for stream in streams if not stream.ended]
    for stream in going_on:
        stream.news.clear()
    await asyncio.gather(*(stream.news.wait() for stream in going_on))


PART = Part("served", rows, measure)

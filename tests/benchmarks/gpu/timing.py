"""Time of work on a device, by its own events, and on a processor, by the wall clock, where a run is rehearsed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

Work = Callable[[], None]


class Clock(Protocol):
    def prepare(self, work: Work, is_captured: bool) -> Work:
        """What is timed in place of ``work``, which is run once on the way.

        Args:
            is_captured: whether it may be a replay of what ``work`` launches.
        """
        ...

    def seconds(self, work: Work) -> float:
        """Run it once."""
        ...


class DeviceClock:
    """CUDA events around a replay of a CUDA graph, so that nothing that the host does between launches is timed.

    Args:
        flush_bytes: read before each sample, several times what the L2 cache holds. Read and not written: what is
            written would have to leave the cache while the sample runs. It also keeps the device busy until the host
            has handed over the whole sample.
    """

    def __init__(self, flush_bytes: int) -> None:
        self._unrelated = torch.ones(flush_bytes // 4, dtype=torch.float32, device="cuda")

    def prepare(self, work: Work, is_captured: bool) -> Work:
        work()  # compiles, and sets up what libraries set up once
        torch.cuda.synchronize()
        if not is_captured:
            return work
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def seconds(self, work: Work) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._unrelated.sum()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000


class WallClock:
    """Of the host."""

    def prepare(self, work: Work, is_captured: bool) -> Work:
        work()
        return work

    def seconds(self, work: Work) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin


def in_turns(works: Mapping[str, Work], clock: Clock, *, rounds: int, warm_ups: int) -> dict[str, list[float]]:
    """Seconds of each, a sample a round; the same index is the same round.

    Args:
        warm_ups: rounds that are run first and not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(-warm_ups, rounds):
        # Who goes first changes, so that a clock that falls slows all of them equally.
        for name in list(works) if turn % 2 == 0 else reversed(list(works)):
            took = clock.seconds(works[name])
            if turn >= 0:
                seconds[name].append(took)
    return seconds

"""Time of work on a device, by its own events, and on a processor, by the wall clock, where a run is rehearsed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from tests.benchmarks.gpu import device

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

    def can_capture(self, work: Work) -> bool:
        """Whether a CUDA graph can hold what ``work`` launches. It has run before, and is run once more."""
        ...

    def frequency(self) -> str:
        """Of the device's multiprocessors at this moment; empty on a processor."""
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

    def can_capture(self, work: Work) -> bool:
        # Not by a capture: one that fails leaves torch's allocator in the middle of it.
        torch.cuda.set_sync_debug_mode("error")
        try:
            work()
        except RuntimeError:  # it waits for the device
            return False
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return True

    def frequency(self) -> str:
        return device.looked_at().get("SM clock", "unknown")


class WallClock:
    """Of the host."""

    def prepare(self, work: Work, is_captured: bool) -> Work:
        work()
        return work

    def seconds(self, work: Work) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    def can_capture(self, work: Work) -> bool:
        return True

    def frequency(self) -> str:
        return ""


def in_turns(
    works: Mapping[str, Work], clock: Clock, *, rounds: int, warm_ups: int, warm_seconds: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of each, a sample a round; the same index is the same round.

    Args:
        warm_ups: rounds that are run first and not counted, at least.
        warm_seconds: that those rounds take together, at least: a device that idled needs a while to reach its clock.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    began, warmed = time.perf_counter(), 0
    while works and (warmed < warm_ups or time.perf_counter() - began < warm_seconds):
        warmed += 1
        _round(works, clock, -warmed)
    for turn in range(rounds):
        for name, took in _round(works, clock, turn).items():
            seconds[name].append(took)
    return seconds


def _round(works: Mapping[str, Work], clock: Clock, turn: int) -> dict[str, float]:
    """Who goes first changes from turn to turn, so that a clock that falls slows all of them equally."""
    names = list(works) if turn % 2 == 0 else reversed(list(works))
    return {name: clock.seconds(works[name]) for name in names}

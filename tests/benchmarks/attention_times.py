"""Times of rivals that take turns, what they are over vLLM's, and how they grow with the context."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from server.printing.tables import Table
from tests.benchmarks.attention_rivals import STOCK, WINDOWED, Rival
from tests.benchmarks.attention_step import Layer, Work
from tests.benchmarks.intervals import Estimate, median_and_range
from tests.benchmarks.record import processor

_COLD_BYTES = 2**28  # of cache that a decode step reads: far more than processors keep from one layer to the next


@dataclasses.dataclass(frozen=True)
class Timed:
    """What one step took.

    Attributes:
        num_layers: that a sample goes through, each with a cache of its own.
        seconds: a layer's, of each rival one a round; the same index is the same round.
        read: part of the KV blocks that the window did not skip.
        kernels: what vLLM's and ours were compiled for.
    """

    layer: Layer
    work: Work
    num_layers: int
    seconds: dict[str, list[float]]
    read: float | None = None
    kernels: dict[str, str] = dataclasses.field(default_factory=dict)

    def ratio(self, name: str) -> Estimate:
        """A rival's time over that of vLLM's attention, round by round."""
        pairs = zip(self.seconds[name], self.seconds[STOCK], strict=True)
        return median_and_range([mine / other for mine, other in pairs])

    def nanoseconds_a_token(self, name: str) -> float:
        """Of a layer, for each token of the context."""
        return 1e9 * statistics.median(self.seconds[name]) / (self.work.batch * self.work.context)

    def to_json(self) -> dict[str, Any]:
        return {
            "layer": self.layer.to_json(),
            "work": dataclasses.asdict(self.work),
            "num_layers": self.num_layers,
            "kernels": self.kernels,
            "seconds": self.seconds,
            "blocks_read": self.read,
        }


def layers_of(layer: Layer, work: Work) -> int:
    """How many layers a sample goes through: in a model every layer's cache is cold when its turn comes.

    A prefill reads what it has just written, and computes for much longer than it reads.
    """
    return 1 if work.kind == "prefill" else math.ceil(_COLD_BYTES / work.cache_bytes(layer))


def measure(
    rivals: Sequence[Rival],
    num_layers: int,
    *,
    rounds: int,
    warm_ups: int,
    advance: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds a layer of each rival, a sample a round.

    Args:
        warm_ups: rounds that are run first and not counted.
        advance: called after every round.
        clock: gives seconds.
    """
    seconds: dict[str, list[float]] = {rival.name: [] for rival in rivals}
    for turn in range(-warm_ups, rounds):
        # Who goes first changes, so that a machine that slows down slows all of them equally.
        for rival in rivals if turn % 2 == 0 else rivals[::-1]:
            begin = clock()
            for layer in range(num_layers):
                rival.attend(layer)
            took = clock() - begin
            if turn >= 0:
                seconds[rival.name].append(took / num_layers)
        advance()
    return seconds


def times_table(timed: Sequence[Timed]) -> Table:
    """A row for each rival, a column for each step, all of one layer."""
    return _table("Time of a layer, ms", timed, lambda one, name: f"{1000 * statistics.median(one.seconds[name]):,.3f}")


def ratios_table(timed: Sequence[Timed]) -> Table:
    """The same, over vLLM's attention without a bias."""
    return _table(
        f"Time over {STOCK}'s, median (range of the rounds)", timed, lambda one, name: f"{one.ratio(name):.2f}"
    )


def growth_table(timed: Sequence[Timed]) -> Table:
    """How the time of decoding grows: what does not change from column to column grows with the context."""
    decoded = [one for one in timed if one.work.kind == "decode"]
    return _table(
        "Decoding, ns for each token of context", decoded, lambda one, name: f"{one.nanoseconds_a_token(name):.1f}"
    )


def _table(title: str, timed: Sequence[Timed], cell: Callable[[Timed, str], str]) -> Table:
    kernels = ", ".join(f"{name}: {kernel}" for name, kernel in timed[0].kernels.items())
    return Table(
        title=f"{title}; {timed[0].layer.name}; {processor()}; {kernels}",
        headings=("attention", *(one.work.name for one in timed)),
        rows=tuple((name, *(cell(one, name) for one in timed)) for name in timed[0].seconds),
    )


def windows_remark(timed: Sequence[Timed]) -> str:
    """How much a window leaves to read, in words."""
    parts = [f"{one.read:.0%} ({one.work.name})" for one in timed if one.read is not None]
    return f"KV blocks that {WINDOWED} reads, {timed[0].layer.dtype_name}: {', '.join(parts)}."

"""A part of the benchmark: rows that are measured together, by engines that are started for them."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import random
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

from tests.benchmarks.gpu.rows import Row
from tests.benchmarks.gpu_engine.sizes import Sizes

# Rows that are answered, and all samples, by name: as soon as they are there, while their engines are still alive.
Found = Generator[tuple[list[Row], dict[str, Any]]]

_ANSWER_SECONDS = 300.0  # that an engine may take to start, or to answer
_GRACE_SECONDS = 20.0  # that it may take beyond the end


@dataclasses.dataclass(frozen=True)
class Stage:
    """Where a part is measured.

    Attributes:
        folder: for logs.
        cores: that an engine may compute on; none where a GPU does.
        in_one_process: engines start sooner so, and are slower.
        is_rehearsal: on the CPU, to see that it runs.
        end: of the monotonic clock: no part, pair or repetition begins later.
    """

    sizes: Sizes
    folder: pathlib.Path
    model: pathlib.Path
    cores: Sequence[int] = ()
    in_one_process: bool = False
    is_rehearsal: bool = False
    end: float = math.inf

    def goes_on(self) -> bool:
        return time.monotonic() < self.end

    def patience(self) -> float:
        """Seconds that are waited for an engine."""
        return max(1.0, min(_ANSWER_SECONDS, self.end + _GRACE_SECONDS - time.monotonic()))


@dataclasses.dataclass(frozen=True)
class Part:
    """
    Attributes:
        rows: what it measures.
        measure: answers the rows, some at a time; not all of them once the stage's time is over.
    """

    name: str
    rows: Callable[[Sizes], list[Row]]
    measure: Callable[[Stage], Found]


def fewer(count: int, wanted: int, unit: str) -> str:
    """For a remark: how many of those that were wanted there was time for; empty for all of them."""
    return "" if count == wanted else f", {count} of {wanted} {unit}"


def tokens(sizes: Sizes, count: int, seed: str) -> list[int]:
    """A random prompt."""
    draw = random.Random(seed)
    return [draw.randrange(sizes.model["vocab_size"]) for _ in range(count)]

"""A part of the benchmark: rows that are measured together, by engines that are started for them."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks.gpu.rows import Row
from tests.benchmarks.gpu_engine.sizes import Sizes

Found = tuple[list[Row], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Stage:
    """Where a part is measured.

    Attributes:
        folder: for logs, with the model in it.
        cores: that an engine may compute on; none where a GPU does.
        in_one_process: engines start sooner so, and are slower.
        is_rehearsal: on the CPU, to see that it runs.
    """

    sizes: Sizes
    folder: pathlib.Path
    model: pathlib.Path
    cores: Sequence[int] = ()
    in_one_process: bool = False
    is_rehearsal: bool = False


@dataclasses.dataclass(frozen=True)
class Part:
    """
    Attributes:
        rows: what it measures.
        measure: fills the rows in, and gives all samples, by name.
    """

    name: str
    rows: Callable[[Sizes], list[Row]]
    measure: Callable[[Stage], Found]


def tokens(sizes: Sizes, count: int, seed: str) -> list[int]:
    """A random prompt."""
    draw = random.Random(seed)
    return [draw.randrange(sizes.model["vocab_size"]) for _ in range(count)]

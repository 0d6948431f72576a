"""Workers for the benchmark of kernels that fail as on a GPU. They import little, so that they start fast."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from tests.benchmarks.gpu.rows import Row
from tests.benchmarks.intervals import Estimate


def unreliable(connection: Connection, names: Sequence[str], is_rehearsal: bool, rounds: int, warm_ups: int) -> None:
    """Does to each trial what its name says."""
    for name in names:
        connection.send((name, None))
        if name == "dies":
            os._exit(3)
        if name == "hangs":
            time.sleep(600)
        connection.send((name, (Row(name, "number").measured(Estimate(1, 1, 1)),)))
        if name == "answers, then dies":
            os._exit(4)


def mute(connection: Connection, names: Sequence[str], is_rehearsal: bool, rounds: int, warm_ups: int) -> None:
    """Does not even begin."""

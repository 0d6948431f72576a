"""All trials, in the order of the table."""

from __future__ import annotations

from tests.benchmarks.gpu import bias, cope, copying, numerics, read_time, rerotate, rotary_store
from tests.benchmarks.gpu.sizes import Sizes
from tests.benchmarks.gpu.trial import Trial

_FILES = (copying, rotary_store, rerotate, bias, cope, read_time, numerics)
SUBJECTS = tuple(file.SUBJECT for file in _FILES)


def trials(sizes: Sizes) -> list[Trial]:
    return [trial for file in _FILES for trial in file.trials(sizes)]

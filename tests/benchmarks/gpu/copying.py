"""A copy from one place in the device's memory to another: the yardstick of everything that is bound by memory."""

from __future__ import annotations

from tests.benchmarks.gpu.checks import same_bits
from tests.benchmarks.gpu.rows import Row
from tests.benchmarks.gpu.sizes import Sizes
from tests.benchmarks.gpu.trial import COPY, Question, Rival, Stage, Timed

SUBJECT = "copy"


def copying(stage: Stage, _: object = None) -> Rival:
    """Outside of a graph: there it might be given to another engine of the device."""
    target, source = stage.copied

    def call(_: int) -> None:
        target.copy_(source)

    target.zero_()
    call(0)
    same_bits(target, source)
    return Rival(call, moved=2 * target.nbytes, is_captured=False)


def trials(sizes: Sizes) -> list[Timed]:
    row = Row(f"copy of {sizes.copy_bytes / 2**30:.3g} GiB on the device", "TB/s, read and written")
    question = Question(row, (COPY,), lambda copy: [each / 1e12 for each in copy.bytes_per_second])
    return [Timed(SUBJECT, row.name, lambda stage: None, {COPY: copying}, [question])]

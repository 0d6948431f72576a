"""A trial of a kernel that crashes or takes too long costs its own rows, and no others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tests.benchmarks.gpu import worker
from tests.benchmarks.gpu.rows import Row
from tests.benchmarks.gpu.worker import Worker
from tests.unreliable_workers import mute, unreliable


@dataclasses.dataclass(frozen=True)
class Named:
    """A trial of one row that nobody in this process answers."""

    name: str
    subject: str = "test"

    @property
    def rows(self) -> tuple[Row, ...]:
        return (Row(self.name, "number"),)


def answers(
    names: Sequence[str], limit: float = 60, trial_limit: float = 20, with_worker: Worker = unreliable
) -> list[Row]:
    found: list[Row] = []
    worker.run(
        [Named(name) for name in names],  # type: ignore[misc]
        lambda name, rows: found.extend(rows or ()),
        is_rehearsal=True,
        rounds=1,
        warm_ups=0,
        limit=limit,
        trial_limit=trial_limit,
        worker=with_worker,
    )
    return found


def test_a_trial_that_kills_its_process_fails_alone() -> None:
    first, second, third, last = answers(["a", "dies", "answers, then dies", "b"])
    assert (first.state, second.state, third.state, last.state) == ("measured", "failed", "measured", "measured")
    assert second.why == "its process ended (exit code 3)"


def test_a_trial_that_takes_too_long_is_given_up() -> None:
    hung, after = answers(["hangs", "a"], trial_limit=3)
    assert (hung.why, after.state) == ("given up after 3 s", "measured")


def test_when_the_time_is_over_what_is_left_has_failed() -> None:
    hung, after = answers(["hangs", "a"], limit=2)
    assert hung.why == after.why == "the run had its 2 s"


def test_a_worker_that_cannot_begin_is_not_started_forever() -> None:
    assert [row.why for row in answers(["a", "b"], with_worker=mute)] == ["its process ended (exit code 0)"] * 2

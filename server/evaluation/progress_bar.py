"""How far an evaluation is, and how long it will take."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


class Clock:
    """Estimates the time that is left from the tokens that were computed so far.

    Args:
        total: tokens that all targets have to compute.
    """

    def __init__(self, total: int) -> None:
        self._left, self._done, self._seconds = total, 0, 0.0

    def took(self, cost: int, seconds: float) -> None:
        """Note what was computed in some seconds of this evaluation."""
        self._left, self._done, self._seconds = self._left - cost, self._done + cost, self._seconds + seconds

    def left(self) -> str:
        """The time that is left, in words."""
        if not self._done:
            return "time left not known yet"
        seconds = self._seconds / self._done * self._left
        if seconds < 90:
            return f"{seconds:.0f} s left"
        return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


class Bar:
    """The bar of one target."""

    def __init__(self, progress: Progress, task: TaskID, clock: Clock) -> None:
        self._progress, self._task, self._clock = progress, task, clock
        self._since = time.monotonic()

    def advance(self, cost: int) -> None:
        """One more item is done."""
        now = time.monotonic()
        self._clock.took(cost, now - self._since)
        self._since = now
        self._progress.update(self._task, advance=1, left=self._clock.left())


@contextlib.contextmanager
def bar(console: Console, name: str, done: int, total: int, clock: Clock) -> Iterator[Bar]:
    """Show a bar while a target is measured.

    Args:
        done: items that an earlier run has measured.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    # Twice a second: a faster bar would take time from what is being measured.
    with Progress(*columns, console=console, refresh_per_second=2) as progress:
        task = progress.add_task(name, total=total, completed=done, left=clock.left())
        yield Bar(progress, task, clock)

"""A row of the result: what is measured of which kernel at which size, its target, and what came of it."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Literal

from tests.benchmarks.gpu.compiled import Compiled
from tests.benchmarks.intervals import Estimate


class State(enum.StrEnum):
    """Of a row."""

    open = "not run"
    measured = "measured"
    skipped = "skipped"
    failed = "failed"


@dataclasses.dataclass(frozen=True)
class Target:
    """What a value must reach."""

    comparison: Literal["at least", "at most"]
    bound: float

    def is_reached(self, value: float) -> bool:
        """A value that is not a number reaches nothing."""
        return value >= self.bound if self.comparison == "at least" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.comparison} {self.bound:g}"


def at_least(bound: float) -> Target:
    return Target("at least", bound)


def at_most(bound: float) -> Target:
    return Target("at most", bound)


@dataclasses.dataclass(frozen=True)
class Row:
    """
    Attributes:
        name: of the kernel, and the size.
        quantity: what the value is, with its unit.
        target: None for what is measured for information.
        value: median over the rounds, with its quartiles.
        why: no value, in words.
        seconds: of a call, one for each round.
        others: seconds of those that it is compared with, round by round.
        moved: bytes that a call reads and writes, counted; None where they do not bound it.
        kernels: what was launched.
        sm_clock: right after the last round.
        remark: more for those who read the row.
    """

    name: str
    quantity: str
    target: Target | None = None
    state: State = State.open
    value: Estimate | None = None
    why: str = ""
    seconds: tuple[float, ...] = ()
    others: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    moved: int | None = None
    kernels: tuple[Compiled, ...] = ()
    sm_clock: str = ""
    remark: str = ""

    def measured(self, value: Estimate, **found: Any) -> Row:
        return dataclasses.replace(self, state=State.measured, value=value, why="", **found)

    def skipped(self, why: str) -> Row:
        return dataclasses.replace(self, state=State.skipped, why=why)

    def failed(self, why: str) -> Row:
        return dataclasses.replace(self, state=State.failed, why=why)

    def not_run(self, why: str) -> Row:
        return dataclasses.replace(self, state=State.open, why=why)

    @property
    def is_reached(self) -> bool | None:
        """Whether the target is; None where there is none, or nothing was measured."""
        if self.target is None or self.value is None:
            return None
        return self.target.is_reached(self.value.value)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"is_reached": self.is_reached}

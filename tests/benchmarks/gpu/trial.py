"""A trial: rivals over the same tensors take turns, each checked before it is timed, and what their times say."""

from __future__ import annotations

import dataclasses
import functools
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from tests.benchmarks.gpu.compiled import Compiled, noted
from tests.benchmarks.gpu.rows import Row, Target
from tests.benchmarks.gpu.sizes import Sizes
from tests.benchmarks.gpu.timing import Clock, in_turns
from tests.benchmarks.intervals import median_and_quartiles

COPY = "copy"


class NotHere(RuntimeError):
    """Something cannot run on this machine; the message says why. Its rows are skipped, and nothing has failed."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """Where trials run, and how often.

    Attributes:
        warm_ups, warm_seconds: see ``in_turns``.
    """

    device: torch.device
    clock: Clock
    sizes: Sizes
    rounds: int
    warm_ups: int
    warm_seconds: float = 0.0

    @property
    def is_rehearsal(self) -> bool:
        return self.device.type != "cuda"

    @functools.cached_property
    def copied(self) -> tuple[Tensor, Tensor]:
        """Target and source of the copy that is the yardstick."""
        numbers = torch.empty(2, self.sizes.copy_bytes // 8, dtype=torch.int64, device=self.device)
        target, source = numbers.random_(generator=self.generator())
        return target, source

    def generator(self, seed: int = 0) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def note(self, work: Callable[[], None]) -> tuple[Compiled, ...]:
        """Run something, and return what our kernels that it launched were compiled to."""
        if self.is_rehearsal:
            work()
            return ()
        with noted() as found:
            work()
        torch.cuda.synchronize()
        return tuple(found.values())


@dataclasses.dataclass(frozen=True)
class Rival:
    """Something to be timed, whose output has been checked.

    Attributes:
        call: of a layer, by its number.
        num_calls: in a sample, over layers 0, 1 and so on.
        moved: counted bytes of a call.
        is_captured: whether a CUDA graph may hold it.
        kernels: what it launches.
        remark: what its check found out about it.
    """

    call: Callable[[int], None]
    num_calls: int = 1
    moved: int | None = None
    is_captured: bool = True
    kernels: tuple[Compiled, ...] = ()
    remark: str = ""

    def sample(self) -> None:
        for layer in range(self.num_calls):
            self.call(layer)


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of a call, one for each round, of a rival."""

    rival: Rival
    seconds: list[float]

    @property
    def bytes_per_second(self) -> list[float]:
        assert self.rival.moved is not None
        return [self.rival.moved / seconds for seconds in self.seconds]


@dataclasses.dataclass(frozen=True)
class Question:
    """A row, and how it follows from the times of some rivals, round by round. The first is whose row it is."""

    row: Row
    rivals: tuple[str, ...]
    values: Callable[..., list[float]]


def share_of_copy(name: str, rival: str, target: Target | None = None) -> Question:
    def values(ours: Times, copy: Times) -> list[float]:
        return _over(ours.bytes_per_second, copy.bytes_per_second)

    return Question(Row(name, "share of copy bandwidth", target), (rival, COPY), values)


def faster(name: str, rival: str, than: str, target: Target | None = None) -> Question:
    row = Row(name, f"times as fast as {than}", target)
    return Question(row, (rival, than), lambda ours, theirs: _over(theirs.seconds, ours.seconds))


def slower(name: str, rival: str, than: str, target: Target | None = None) -> Question:
    row = Row(name, f"times the time of {than}", target)
    return Question(row, (rival, than), lambda ours, theirs: _over(ours.seconds, theirs.seconds))


def duration(name: str, rival: str, unit: Literal["ms", "µs"], target: Target | None = None) -> Question:
    per_second = {"ms": 1e3, "µs": 1e6}[unit]
    return Question(Row(name, unit, target), (rival,), lambda ours: [per_second * each for each in ours.seconds])


class Trial(Protocol):
    """
    Attributes:
        subject: by which it can be asked for.
        name: of this one.
        rows: what it answers, not yet answered.
    """

    @property
    def subject(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> tuple[Row, ...]: ...
    def answer(self, stage: Stage) -> tuple[Row, ...]:
        """The same rows, answered. What a row needs and what fails is said in it; more is raised."""
        ...


@dataclasses.dataclass(frozen=True)
class Timed:
    """
    Attributes:
        setting: makes the tensors that all rivals share.
        rivals: each checks its output, and raises ``NotHere`` or whatever is wrong.
        most_rounds: of rivals that take long.
    """

    subject: str
    name: str
    setting: Callable[[Stage], Any]
    rivals: Mapping[str, Callable[[Stage, Any], Rival]]
    questions: Sequence[Question]
    most_rounds: int | None = None

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(question.row for question in self.questions)

    def answer(self, stage: Stage) -> tuple[Row, ...]:
        setting = self.setting(stage)
        entered: dict[str, Rival] = {}
        works: dict[str, Callable[[], None]] = {}
        missing: dict[str, Exception] = {}
        for name, enter in self.rivals.items():
            try:
                rival = enter(stage, setting)
                works[name] = stage.clock.prepare(rival.sample, rival.is_captured)
                entered[name] = rival
            except Exception as error:
                missing[name] = error
                if not isinstance(error, NotHere):
                    print(f"{self.name}, {name}:", file=sys.stderr)
                    traceback.print_exception(error)
        rounds = min(stage.rounds, self.most_rounds or stage.rounds)
        taken = in_turns(works, stage.clock, rounds=rounds, warm_ups=stage.warm_ups, warm_seconds=stage.warm_seconds)
        frequency = stage.clock.frequency()  # at once: an idle device lets it fall
        times = {
            name: Times(rival, [seconds / rival.num_calls for seconds in taken[name]])
            for name, rival in entered.items()
        }
        return tuple(_answer(question, times, missing, frequency) for question in self.questions)


def _answer(question: Question, times: Mapping[str, Times], missing: Mapping[str, Exception], frequency: str) -> Row:
    for name in question.rivals:
        if isinstance(error := missing.get(name), NotHere):
            return question.row.skipped(str(error))
        if error is not None:
            return question.row.failed(f"{name}: {described(error)}")
    ours, *others = needed = [times[name] for name in question.rivals]
    return question.row.measured(
        median_and_quartiles(question.values(*needed)),
        seconds=tuple(ours.seconds),
        others={name: tuple(one.seconds) for name, one in zip(question.rivals[1:], others, strict=True)},
        moved=ours.rival.moved,
        kernels=ours.rival.kernels,
        sm_clock=frequency,
        remark=ours.rival.remark,
    )


def described(error: BaseException) -> str:
    """In one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _over(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    return [above / below for above, below in zip(numerators, denominators, strict=True)]

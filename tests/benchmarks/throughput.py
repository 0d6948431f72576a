"""Speed of two engines, pair by pair: only one computes at a time, and their order alternates (A B B A ...)."""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from server.printing.tables import Table
from tests.benchmarks.engine_process import Batch
from tests.benchmarks.intervals import Estimate, median_and_quartiles, paired_ratio
from tests.benchmarks.two_engines import MODEL, Case

TARGET = 0.97
FEWEST_PAIRS = 7


class Engine(Protocol):
    """What the measurement needs of an engine."""

    def run(self, prompts: list[list[int]], max_tokens: int) -> Batch: ...

    def cpu_seconds(self) -> float: ...

    def wait_until_idle(self) -> float: ...


class Invalid(RuntimeError):
    """A measurement did not measure what it was meant to."""


@dataclasses.dataclass
class Measured:
    """All pairs of one case.

    Attributes:
        ours, stock: tokens per second, the same index being the same pair.
        starts: for each pair, how often both engines had been started.
        step_seconds: seconds per step of stock vLLM, one for each pair; None for prefill.
        batches: of a sample, one number for each pair.
        idle_shares: what share of a core the waiting engine took, one for each sample of the other.
        scales: those that our engine ran the requests at.
    """

    case: Case
    ours: list[float] = dataclasses.field(default_factory=list)
    stock: list[float] = dataclasses.field(default_factory=list)
    starts: list[int] = dataclasses.field(default_factory=list)
    step_seconds: list[float] = dataclasses.field(default_factory=list)
    batches: list[int] = dataclasses.field(default_factory=list)
    idle_shares: list[float] = dataclasses.field(default_factory=list)
    scales: set[float] = dataclasses.field(default_factory=set)

    @property
    def ratio(self) -> Estimate:
        return paired_ratio(self.ours, self.stock)

    @property
    def ratios_by_start(self) -> list[float]:
        """The median ratio of the pairs of each start."""
        pairs = list(zip(self.starts, self.ours, self.stock, strict=True))
        return [
            statistics.median(ours / stock for own, ours, stock in pairs if own == start)
            for start in sorted(set(self.starts))
        ]

    @property
    def reaches_target(self) -> bool:
        return self.ratio.value >= TARGET

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {
            "scales": sorted(self.scales),
            "ratio": dataclasses.asdict(self.ratio),
            "reaches_target": self.reaches_target,
        }


def measure(
    case: Case,
    ours: Engine,
    stock: Engine,
    *,
    name_scales: tuple[bool, bool] = (True, False),
    pairs: int,
    warm_ups: int,
    seed: int,
    advance: Callable[[], None],
    sample_seconds: float = 0.0,
    goes_on: Callable[[], bool] = lambda: True,
    before: Measured | None = None,
) -> Measured:
    """Run one case on both engines, alternately.

    Args:
        name_scales: which of the two must name scales.
        warm_ups: pairs that are run first and not counted.
        advance: called after every sample.
        sample_seconds: that a sample takes at least: batches with prompts of their own follow each other until the
            engine that goes first has computed for so long, and the other one gets as many.
        goes_on: whether another pair is begun.
        before: what was measured before the engines were started anew; the pairs are added to it.

    Raises:
        Invalid: when a prompt was answered from the prefix cache, or a scale is not where it should be.
    """
    measured = before or Measured(case)
    start = measured.starts[-1] + 1 if measured.starts else 1
    seed_of_start = f"{seed}:{case.name}" if start == 1 else f"{seed}:{start}:{case.name}"
    for pair in range(-warm_ups, pairs):
        if not goes_on():
            break
        batches: int | None = None
        for engine in order(pair, ours, stock):
            other = stock if engine is ours else ours
            # The engine that ran last polls for another second; and the one before it may not be asleep either.
            other.wait_until_idle()
            idle_before = other.cpu_seconds()
            sample = _sample(case, engine, f"{seed_of_start}:{pair}", sample_seconds, batches)
            idle_seconds = other.cpu_seconds() - idle_before
            batches = len(sample)
            for batch in sample:
                _verify(case, batch, scaled=name_scales[engine is not ours])
            if pair >= 0:
                _note(measured, sample, is_ours=engine is ours, idle_seconds=idle_seconds)
            advance()
        if pair >= 0:
            measured.starts.append(start)
    return measured


def _sample(case: Case, engine: Engine, seed: str, seconds: float, batches: int | None) -> list[Batch]:
    """So many batches, or as many as it takes to fill so many seconds; each has prompts of its own."""
    sample: list[Batch] = []
    while not sample or (
        sum(batch.seconds for batch in sample) < seconds if batches is None else len(sample) < batches
    ):
        prompts = random_prompts(case, seed=f"{seed}:{len(sample)}" if sample else seed)
        sample.append(engine.run(prompts, case.new_tokens))
    return sample


def order(pair: int, ours: Engine, stock: Engine) -> tuple[Engine, Engine]:
    """Who goes first changes from pair to pair, so that a machine that slows down slows both sides equally."""
    return (ours, stock) if pair % 2 == 0 else (stock, ours)


def random_prompts(case: Case, *, seed: str) -> list[list[int]]:
    """Prompts that nobody has seen, so that nothing of them is cached; both sides of a pair get the same."""
    generator = random.Random(seed)
    return [[generator.randrange(MODEL["vocab_size"]) for _ in range(case.prompt_tokens)] for _ in range(case.batch)]


def results_table(results: Sequence[Measured], first: str = "ours", second: str = "stock") -> Table:
    """One row for each case."""
    return Table(
        title=f"Throughput in tokens/s, {first} over {second} (median, quartiles of the pairs)",
        headings=("case", first, second, f"{first} / {second}", "step, ms", f"{TARGET:g}"),
        rows=tuple(_row(one) for one in results),
    )


def verdict(results: Sequence[Measured]) -> str:
    """Which cases miss the target, in words."""
    missed = [f"{one.case.name} ({one.ratio.value:.3f})" for one in results if not one.reaches_target]
    if not missed:
        return f"Every case reaches {TARGET:g}."
    return f"{len(missed)} of {len(results)} cases miss {TARGET:g}: {'; '.join(missed)}."


def caution(results: Sequence[Measured]) -> list[str]:
    """What keeps the verdict from being final, in words; nothing when it is."""
    said = []
    if (pairs := min(len(one.ours) for one in results)) < FEWEST_PAIRS:
        said.append(f"Only {pairs} pairs a case: too few to quote, {FEWEST_PAIRS} are needed.")
    if unsure := [one.case.name for one in results if one.ratio.low < TARGET <= one.ratio.high]:
        said.append(f"The quartiles span {TARGET:g}, so that more pairs could turn the verdict: {'; '.join(unsure)}.")
    return said


def spread_of_starts(results: Sequence[Measured]) -> list[str]:
    """How far apart the ratios of different starts are, in words; nothing where the engines were started once."""
    by_case = [(one.case.name, one.ratios_by_start) for one in results]
    if max(len(ratios) for _, ratios in by_case) < 2:
        return []
    said = (f"{name} {', '.join(f'{ratio:.3f}' for ratio in ratios)}" for name, ratios in by_case)
    return [
        "Both engines were started anew, each time the other one first, because an engine is up to some percent faster "
        f"or slower from one start to the next. Medians of the starts: {'; '.join(said)}."
    ]


def idleness(results: Sequence[Measured]) -> str:
    """How much the waiting engine took from the other, in words."""
    shares = [share for one in results for share in one.idle_shares]
    return (
        f"While one engine ran, the waiting one took {statistics.median(shares):.1%} of a core "
        f"(median), {max(shares):.1%} at most."
    )


def _note(measured: Measured, sample: Sequence[Batch], *, is_ours: bool, idle_seconds: float) -> None:
    case = measured.case
    seconds = sum(batch.seconds for batch in sample)
    tokens = sum(batch.generated_tokens if case.kind == "decode" else batch.prompt_tokens for batch in sample)
    (measured.ours if is_ours else measured.stock).append(tokens / seconds)
    measured.idle_shares.append(idle_seconds / seconds)
    measured.scales.update(scale for batch in sample for scale in batch.scales)
    if not is_ours:
        measured.batches.append(len(sample))
        if case.kind == "decode":
            measured.step_seconds.append(seconds / len(sample) / case.new_tokens)


def _verify(case: Case, batch: Batch, *, scaled: bool) -> None:
    if batch.cached_tokens:
        raise Invalid(f"{case.name}: {batch.cached_tokens} prompt tokens came from the prefix cache")
    if batch.generated_tokens != case.batch * case.new_tokens:
        raise Invalid(f"{case.name}: {batch.generated_tokens} tokens, not {case.batch} times {case.new_tokens}")
    if bool(batch.scales) is not scaled:
        who = "our engine named no scale" if scaled else "stock vLLM ran with our plugin"
        raise Invalid(f"{case.name}: {who}")


def _row(one: Measured) -> tuple[str, ...]:
    step = f"{1000 * median_and_quartiles(one.step_seconds).value:.1f}" if one.step_seconds else ""
    return (
        one.case.name,
        f"{median_and_quartiles(one.ours).value:,.0f}",
        f"{median_and_quartiles(one.stock).value:,.0f}",
        f"{one.ratio:.3f}",
        step,
        "reached" if one.reaches_target else "missed",
    )

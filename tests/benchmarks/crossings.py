"""What a crossing costs, and what a reused prefix saves: ``python -m tests.benchmarks.crossings``."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from posenc_runtime.kv.budget import Budget, Speed, measured_budget
from posenc_runtime.kv.deployment import Deployment, PrefixReuse
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.__main__ import last_core
from tests.benchmarks.engine_process import EngineFailed, EngineProcess
from tests.benchmarks.intervals import median_and_quartiles
from tests.benchmarks.progress import progress_bar
from tests.benchmarks.two_engines import BLOCK_SIZE, MODEL, save_model

BEFORE = 24  # tokens that the long request says before it crosses
NEW_TOKENS = 2 * BEFORE
OTHERS = 4
BUDGETS = (None, 2048, 65536)  # the default, a small one, and one that bounds nothing
REUSED, ASKED = 4000, 192  # tokens of the prefix, and behind it
_REUSE_TRAINED = 4096
_console = Console(soft_wrap=True)

Advance = Callable[[], None]


@dataclasses.dataclass(frozen=True)
class Case:
    """One engine and what is done to it.

    Attributes:
        trained: tokens after which the long request crosses.
        budget: ``rerotate_budget_tokens``; None for the default, which the engine measures.
        keeps_prefix: blocks are copied, so that the prefix cache keeps what it has; otherwise turned in place.
    """

    trained: int
    budget: int | None
    keeps_prefix: bool

    @property
    def name(self) -> str:
        budget = "default" if self.budget is None else f"{self.budget:,} a step"
        return f"{self.trained:,} tokens, {budget}, {'copied' if self.keeps_prefix else 'in place'}"


@dataclasses.dataclass
class Crossed:
    """All repetitions of a case.

    Attributes:
        usual: seconds of steps in which nobody crossed, which are the others' inter-token latencies, too.
        crossing: of each repetition, seconds of the steps from the one before which the request was due until it ran.
        first_token: seconds until the long request's first token, in each repetition.
        budget: what its engine re-rotates before a step.
    """

    case: Case
    usual: list[float] = dataclasses.field(default_factory=list)
    crossing: list[list[float]] = dataclasses.field(default_factory=list)
    first_token: list[float] = dataclasses.field(default_factory=list)
    budget: Budget | None = None

    @property
    def name(self) -> str:
        """The case's, with the budget that was measured for it."""
        if self.case.budget is None and self.budget is not None:
            return self.case.name.replace("default", f"default: {self.budget.tokens:,} a step")
        return self.case.name

    @property
    def num_budget_tokens(self) -> int:
        """Cached tokens re-rotated before a step: what was asked for, or measured. 0 before the first answer."""
        return self.case.budget or (self.budget.tokens if self.budget else 0)

    def add(self, answer: dict[str, Any]) -> None:
        """Take in what the worker saw."""
        steps = list(zip(answer["step_seconds"], answer["tokens_after_step"], strict=True))
        # The token at the trained length was said; the steps until there is another one are the crossing's.
        window = [seconds for index, (seconds, _) in enumerate(steps) if _tokens_before(steps, index) == BEFORE + 1]
        self.crossing.append(window)
        self.first_token.append(answer["first_token_seconds"])
        if answer["speeds"]:
            self.budget = measured_budget([Speed(**speed) for speed in answer["speeds"]])
        self.usual += [
            seconds for index, (seconds, _) in enumerate(steps) if _tokens_before(steps, index) != BEFORE + 1
        ]

    @property
    def worst_steps(self) -> list[float]:
        """The longest step of each crossing over the usual one."""
        usual = statistics.median(self.usual)
        return [max(window) / usual for window in self.crossing]

    def percentile(self, share: float) -> float:
        """Of the others' inter-token latencies while one crosses, seconds."""
        during = sorted(seconds for window in self.crossing for seconds in window)
        return during[min(int(share * len(during)), len(during) - 1)]


def _tokens_before(steps: Sequence[tuple[float, int]], index: int) -> int:
    return steps[index - 1][1] if index else 1


def main(
    trained: Annotated[list[int] | None, typer.Option(min=256, help="Tokens at the crossing; may be repeated.")] = None,
    budget: Annotated[list[int] | None, typer.Option(min=1, help="Tokens a step; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=2, help="Crossings a case, the first of which warms up.")] = 6,
    out: Annotated[pathlib.Path | None, typer.Option(help="Write the result to OUT.json and OUT.md.")] = None,
) -> None:
    """Measure steps while one request crosses beside others that decode, and the time to the first token with and
    without the reuse of a prefix that is cached at another scale.
    """
    lengths = trained or [4096, 16384]
    cases = [Case(length, tokens, True) for length in lengths for tokens in budget or BUDGETS]
    cases += [Case(length, None, False) for length in lengths]
    crossed: list[Crossed] = []
    with tempfile.TemporaryDirectory(prefix="posenc-bench-") as name, progress_bar(_console) as bar:
        folder = pathlib.Path(name)
        model = save_model(folder / "model", MODEL | {"max_position_embeddings": max(*lengths, _REUSE_TRAINED)})
        task = bar.add_task("measuring", total=(len(cases) + 1) * repetitions)
        try:
            for case in cases:
                bar.update(task, description=case.name)
                crossed.append(_cross(case, model, folder, repetitions, lambda: bar.advance(task)))
            bar.update(task, description="prefix reuse")
            first_tokens = _reuse(model, folder, repetitions, lambda: bar.advance(task))
        except EngineFailed as error:
            bar.stop()
            _console.print(f"[bold red]failed[/] {error}", highlight=False)
            raise typer.Exit(1) from None
    _report(crossed, first_tokens, out)


@contextlib.contextmanager
def _engine(model: pathlib.Path, log: pathlib.Path, deployment: Deployment, **engine: Any) -> Iterator[EngineProcess]:
    tokens = 3 * deployment.max_model_len
    bytes_per_token = 2 * MODEL["num_hidden_layers"] * MODEL["num_key_value_heads"] * MODEL["head_dim"] * 4
    arguments = {
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": OTHERS + 1,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": tokens * bytes_per_token,
        "seed": 0,
    }
    with EngineProcess(
        model,
        engine_arguments(deployment, arguments | engine),
        worker_cores=[last_core()],
        plugins="posenc",
        log=log,
        worker="tests.benchmarks.stepping_worker",
        in_one_process=True,
    ) as process:
        yield process


def _cross(case: Case, model: pathlib.Path, folder: pathlib.Path, repetitions: int, advance: Advance) -> Crossed:
    deployment = Deployment(
        rope_type="yarn",
        scales=(1.0, 2.0),
        original_max_position_embeddings=case.trained,
        max_model_len=2 * case.trained,
        headroom_tokens=BEFORE,
        rerotate_budget_tokens=case.budget,
    )
    crossed = Crossed(case)
    long = _tokens(case.trained - BEFORE, seed=case.name)
    with _engine(model, folder / "engine.log", deployment, enable_prefix_caching=case.keeps_prefix) as engine:
        for repetition in range(repetitions):
            others = [_tokens(8, seed=f"{case.name}:{repetition}:{number}") for number in range(OTHERS)]
            answer = engine.ask({"others": others, "long": long, "new_tokens": NEW_TOKENS})
            if [crossing["at"] for crossing in answer["posenc"]["crossings"]] != [case.trained]:
                raise EngineFailed(f"{case.name}: did not cross once, at {case.trained}: {answer['posenc']}")
            if repetition:
                crossed.add(answer)
            advance()
    return crossed


def _reuse(model: pathlib.Path, folder: pathlib.Path, repetitions: int, advance: Advance) -> list[tuple[float, float]]:
    """Seconds to the first token over a prefix of another scale, by ``exact`` and by ``rerotate``, pair by pair."""
    pairs: list[tuple[float, float]] = []
    exact, rerotate = (
        Deployment(
            rope_type="yarn",
            scales=(1.0, 2.0),
            original_max_position_embeddings=_REUSE_TRAINED,
            max_model_len=2 * _REUSE_TRAINED,
            on_crossing="pin",
            prefix_reuse=prefix_reuse,
        )
        for prefix_reuse in get_args(PrefixReuse)
    )
    with (
        _engine(model, folder / "exact.log", exact) as first,
        _engine(model, folder / "rerotate.log", rerotate) as second,
    ):
        for repetition in range(repetitions):
            document, question = _tokens(REUSED, seed=f"{repetition}"), _tokens(ASKED, seed=f"{repetition}?")
            seconds = []
            for engine in (first, second):
                engine.ask({"others": [], "long": document + question[:8], "new_tokens": 1})
                answer = engine.ask({"others": [], "long": document + question, "new_tokens": 1})
                reused = sum(prefix["tokens"] for prefix in answer["posenc"].get("prefixes_reused", ()))
                if reused != (REUSED if engine is second else 0):
                    raise EngineFailed(f"{reused} tokens were reused")
                seconds.append(answer["first_token_seconds"])
            if repetition:
                pairs.append((seconds[0], seconds[1]))
            advance()
    return pairs


def _tokens(count: int, seed: str) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(MODEL["vocab_size"]) for _ in range(count)]


def crossings_table(crossed: Sequence[Crossed]) -> Table:
    """A row for each case."""
    return Table(
        title=f"A request that crosses beside {OTHERS} that decode, times in ms",
        headings=("case", "usual step", "longest / usual", "p50", "p99", "wait", "rerun"),
        rows=tuple(
            (
                one.name,
                f"{1000 * statistics.median(one.usual):.1f}",
                f"{median_and_quartiles(one.worst_steps):.2f}",
                f"{1000 * one.percentile(0.5):.1f}",
                f"{1000 * one.percentile(0.99):.1f}",
                f"{1000 * statistics.median(map(sum, one.crossing)):.1f}",
                f"{1000 * statistics.median(one.first_token):,.0f}",
            )
            for one in crossed
        ),
    )


def reuse_remark(pairs: Sequence[tuple[float, float]]) -> str:
    """What the reuse of a prefix saves, in words."""
    ratio = median_and_quartiles([exact / rerotate for exact, rerotate in pairs])
    exact, rerotate = (statistics.median(side) for side in zip(*pairs, strict=True))
    return (
        f"First token of a prompt of {REUSED + ASKED:,} tokens whose first {REUSED:,} are cached at another scale: "
        f"{1000 * exact:,.0f} ms with prefix_reuse exact, {1000 * rerotate:,.0f} ms with rerotate, {ratio:.1f} times "
        "as fast."
    )


def _report(crossed: Sequence[Crossed], pairs: Sequence[tuple[float, float]], out: pathlib.Path | None) -> None:
    table = crossings_table(crossed)
    remarks = [
        "Longest: of the steps while a request crosses, over the usual one. p50 and p99: of the others' inter-token "
        "latencies meanwhile. Wait: from the moment that the request is due until its next token. Rerun: its first "
        "token when it comes again. Copied: the prefix cache keeps what the request had cached, and a rerun finds it; "
        "in place: with prefix caching off.",
        *dict.fromkeys(f"{one.name}: {one.budget.reason}." for one in crossed if one.budget),
        reuse_remark(pairs),
    ]
    _console.print(table.for_terminal())
    for remark in remarks:
        _console.print(remark, highlight=False)
    if out is None:
        return
    result = {
        "model": MODEL,
        "cases": [dataclasses.asdict(one) for one in crossed],
        "first_token_seconds": [{"exact": exact, "rerotate": rerotate} for exact, rerotate in pairs],
    }
    markdown = "\n\n".join([f"{table.title}:", table.as_markdown(), *remarks])
    for file in record.write(out, result, record.Provenance.of_this_run("tests.benchmarks.crossings"), markdown):
        _console.print(f"wrote {file}", highlight=False)


if __name__ == "__main__":
    typer.run(main)

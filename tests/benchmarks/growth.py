"""What a request still knows after it outgrew its scale, or reused a prefix: ``python -m tests.benchmarks.growth``."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from transformers import AutoTokenizer

from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from posenc_runtime.zoo.passkey import PasskeySample, is_correct, make_sample
from server.deployment.load import load
from server.deployment.settings import Settings
from server.printing.tables import Table
from server.start_up.planning import plan_settings
from tests.benchmarks import record
from tests.benchmarks.accuracy import CONFIG, SEED
from tests.benchmarks.engine_process import EngineFailed, EngineProcess
from tests.benchmarks.intervals import wilson
from tests.benchmarks.progress import progress_bar
from tests.benchmarks.variants import UNSCALED, Checkpoint, served_length, variants

MULTIPLES = (1.5, 3.0)
DECOYS = 6
BEGINNING = 0.875  # of the trained length: what is there before anything grows
DEEPEST = 0.8  # of the beginning: the key is in there
FORCED_AFTER_REUSE = 128  # tokens at the end that are decoded one by one after a prefix was reused
BATCH = 32
_console = Console(soft_wrap=True)

Message = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Deployed:
    """One row: how the engine is configured, None for stock vLLM with ``rope_parameters``."""

    name: str
    sets: tuple[str, ...] = ()
    rope_parameters: dict[str, Any] | None = None


@dataclasses.dataclass
class Cell:
    """How one deployment did at one length.

    Attributes:
        logprobs: of each sample, the mean over its forced tokens past the trained length.
        crossings, reused_tokens: what the responses said, in all.
    """

    length: int
    samples: int = 0
    correct: int = 0
    logprobs: list[float] = dataclasses.field(default_factory=list)
    crossings: int = 0
    reused_tokens: int = 0

    def count(self, sample: PasskeySample, text: str, logprob: float, posenc: Message | None) -> None:
        """Take one response in."""
        self.samples += 1
        self.correct += is_correct(sample, text)
        self.logprobs.append(logprob)
        self.crossings += len((posenc or {}).get("crossings", ()))
        self.reused_tokens += sum(each["tokens"] for each in (posenc or {}).get("prefixes_reused", ()))

    @property
    def logprob(self) -> str:
        """The mean with half of its 95 % interval."""
        half = 1.96 * statistics.stdev(self.logprobs) / len(self.logprobs) ** 0.5
        return f"{statistics.fmean(self.logprobs):.3f} ± {half:.3f}"


Results = dict[str, list[Cell]]


def growing(settings: Settings, checkpoint: Checkpoint) -> list[Deployed]:
    """What can become of a request that grows past the trained length."""
    static = variants(checkpoint, settings.scaling.scales)["static-yarn"]
    return [
        *(Deployed(how, (f"scaling.on_crossing={how}",)) for how in ("rerotate", "recompute", "pin")),
        Deployed(static.name, rope_parameters=static.rope_parameters),
        Deployed("unscaled", UNSCALED),
    ]


REUSING = tuple(
    Deployed(how, (f"scaling.prefix_reuse={how}", "scaling.on_crossing=pin")) for how in ("exact", "rerotate")
)


def main(
    samples: Annotated[int, typer.Option(min=2, help="Samples a cell; at least 200 for a result to quote.")] = 200,
    config: Annotated[
        pathlib.Path, typer.Option(help="A deployment's YAML file.", show_default="configs/demo.yaml")
    ] = CONFIG,
    multiple: Annotated[
        list[float] | None,
        typer.Option(min=1.1, help="Length at the end, in trained lengths; may be repeated. 1.5 and 3 when left out."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first sample; the others follow.")] = SEED,
    out: Annotated[pathlib.Path | None, typer.Option(help="Write the result to OUT.json and OUT.md.")] = None,
) -> None:
    """Let requests grow past the trained length token by token, and ask at the end for a key from their beginning.

    Every request begins with less than the trained length, is forced to say the rest of its text token by token, and
    then answers freely. Every deployment gets the same texts.
    """
    settings = load(config)
    checkpoint = Checkpoint.of(settings)
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    beginning = int(BEGINNING * checkpoint.trained)
    texts = {
        round(one * checkpoint.trained): [
            make_sample(
                tokenizer,
                round(one * checkpoint.trained),
                seed + index,
                depth=DEEPEST * BEGINNING / one * (index + 0.5) / samples,
                decoys=DECOYS,
            )
            for index in range(samples)
        ]
        for one in multiple or MULTIPLES
    }
    grown: Results = {}
    reused: Results = {}
    with progress_bar(_console) as bar, tempfile.TemporaryDirectory(prefix="posenc-growth-") as folder:
        for deployed, results, ask in (
            *((deployed, grown, _grow) for deployed in growing(settings, checkpoint)),
            *((deployed, reused, _reuse) for deployed in REUSING),
        ):
            task = bar.add_task(deployed.name, total=sum(map(len, texts.values())))
            try:
                with _engine(deployed, config, settings, checkpoint, pathlib.Path(folder)) as engine:
                    results[deployed.name] = [
                        _measure(
                            engine,
                            tokenizer,
                            of_length,
                            ask,
                            beginning,
                            checkpoint.trained,
                            functools.partial(bar.advance, task),
                        )
                        for of_length in texts.values()
                    ]
            except EngineFailed as error:
                bar.stop()
                _console.print(f"[bold red]failed[/] {deployed.name}: {error}", highlight=False)
                raise typer.Exit(1) from None
    _report(grown, reused, beginning, checkpoint, {"samples": samples, "seed": seed}, out)


@contextlib.contextmanager
def _engine(
    deployed: Deployed, config: pathlib.Path, settings: Settings, checkpoint: Checkpoint, folder: pathlib.Path
) -> Iterator[EngineProcess]:
    own = {"logits_processors": ["tests.benchmarks.growth_worker:Forcing"], "async_scheduling": False}
    if deployed.rope_parameters is None:
        chosen = load(config, (*deployed.sets, f"max_model_len={served_length(settings, checkpoint)}"))
        arguments = engine_arguments(plan_settings(chosen).deployment, chosen.engine | own)
        plugins = "posenc"
    else:
        length = served_length(settings, checkpoint)
        overrides = {"max_position_embeddings": length, "rope_parameters": deployed.rope_parameters}
        arguments = settings.engine | own | {"max_model_len": length, "hf_overrides": overrides}
        plugins = ""
    with EngineProcess(
        pathlib.Path(settings.model),
        arguments,
        worker_cores=[0],
        plugins=plugins,
        log=folder / "engine.log",
        worker="tests.benchmarks.growth_worker",
        in_one_process=True,
    ) as engine:
        yield engine


def _grow(ids: list[int], beginning: int, num_free: int) -> list[Message]:
    return [{"prompt": ids[:beginning], "forced": ids[beginning:], "free": num_free}]


def _reuse(ids: list[int], beginning: int, num_free: int) -> list[Message]:
    """First somebody else asks about the beginning, at its own scale."""
    prompt, forced = ids[:-FORCED_AFTER_REUSE], ids[-FORCED_AFTER_REUSE:]
    return [
        {"prompt": ids[:beginning], "forced": [], "free": 1},
        {"prompt": prompt, "forced": forced, "free": num_free},
    ]


def _measure(
    engine: EngineProcess,
    tokenizer: Any,
    samples: Sequence[PasskeySample],
    ask: Callable[[list[int], int, int], list[Message]],
    beginning: int,
    trained: int,
    advance: Callable[[], None],
) -> Cell:
    cell = Cell(samples[0].total_tokens)
    for first in range(0, len(samples), BATCH):
        batch = samples[first : first + BATCH]
        asked = [
            ask(tokenizer.encode(sample.prompt), beginning, sample.total_tokens - sample.prompt_tokens)
            for sample in batch
        ]
        for messages in zip(*asked, strict=True):
            answers = engine.ask({"requests": messages})["answers"]
        for sample, message, answer in zip(batch, messages, answers, strict=True):
            num_forced = len(message["forced"])
            past = max(trained - len(message["prompt"]), 0)
            cell.count(
                sample,
                tokenizer.decode(answer["token_ids"][num_forced:]),
                statistics.fmean(answer["logprobs"][past:num_forced]),
                answer["posenc"],
            )
            advance()
    return cell


def results_table(title: str, results: Results, trained: int) -> Table:
    """A row for each deployment; accuracy and mean logprob for each length."""
    columns = next(iter(results.values()))
    return Table(
        title=title,
        headings=(
            "deployment",
            *(
                f"{what}, {cell.length} tokens ({cell.length / trained:g}x)"
                for cell in columns
                for what in ("key found", "mean logprob")
            ),
        ),
        rows=tuple(
            (
                name,
                *(text for cell in cells for text in (f"{wilson(cell.correct, cell.samples):.2f}", cell.logprob)),
            )
            for name, cells in results.items()
        ),
    )


def _report(
    grown: Results,
    reused: Results,
    beginning: int,
    checkpoint: Checkpoint,
    sampled: dict[str, Any],
    out: pathlib.Path | None,
) -> None:
    tables = [
        results_table(
            f"Requests that grow from {beginning} tokens, trained on {checkpoint.trained}", grown, checkpoint.trained
        ),
        results_table(
            f"Requests whose first {beginning} tokens are cached at scale 1, by prefix_reuse",
            reused,
            checkpoint.trained,
        ),
    ]
    remark = (
        f"A key among {DECOYS} other codes in the first {DEEPEST * BEGINNING:.0%} of the trained length, "
        f"{sampled['samples']} samples a cell, 95 % intervals. Mean logprob: of the tokens past the trained length, "
        "decoded one by one."
    )
    for table in tables:
        _console.print(table.for_terminal())
    _console.print(remark, highlight=False)
    if out is None:
        return
    cells = {
        name: [dataclasses.asdict(cell) for cell in cells]
        for results, kind in ((grown, "on_crossing"), (reused, "prefix_reuse"))
        for name, cells in ((f"{kind} {one}", of_one) for one, of_one in results.items())
    }
    result = sampled | {"weights_sha256": checkpoint.weights_sha256, "beginning": beginning, "cells": cells}
    markdown = record.sections(tables, [remark])
    for file in record.write(out, result, record.Provenance.of_this_run("tests.benchmarks.growth"), markdown):
        _console.print(f"wrote {file}", highlight=False)


if __name__ == "__main__":
    typer.run(main)

"""Pass key accuracy over HTTP, by deployment and length: ``python -m tests.benchmarks.accuracy``."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from posenc_runtime.zoo.passkey import PasskeySample, make_sample
from server.deployment.load import load
from server.deployment.settings import Settings
from server.evaluation.intervals import Estimate, mean
from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.intervals import wilson
from tests.benchmarks.passkey_client import Cell, Haystack, ask
from tests.benchmarks.progress import progress_bar
from tests.benchmarks.servers import ServerFailed, running
from tests.benchmarks.variants import Checkpoint, Variant, command, served_length, served_name, variants

# Far from the seeds with which the demo was trained, its weights selected and its tests written.
SEED = 7_000_000
MULTIPLES = (0.5, 1.0, 2.0, 4.0, 8.0)
DECOYS = (0, 6)
CONFIG = pathlib.Path(__file__).parents[2] / "configs" / "demo.yaml"
_console = Console(soft_wrap=True)

Results = dict[str, list[Cell]]
Samples = dict[Haystack, Sequence[PasskeySample]]


def main(
    samples: Annotated[int, typer.Option(min=1, help="Samples a cell; at least 200 for a result to quote.")] = 200,
    config: Annotated[
        pathlib.Path, typer.Option(help="A deployment's YAML file.", show_default="configs/demo.yaml")
    ] = CONFIG,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Override a setting, for every deployment alike."),
    ] = None,
    deployment: Annotated[
        list[str] | None,
        typer.Option(
            help="One of tests/benchmarks/variants.py, such as static-yarn, yarn or rerope; may be repeated. All are "
            "compared with the first. All of them when left out."
        ),
    ] = None,
    multiple: Annotated[
        list[float] | None,
        typer.Option(min=0.1, help="Length, in trained lengths; may be repeated. 0.5 to 8 when left out."),
    ] = None,
    decoys: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            help="Other codes in the haystack, a table each; may be repeated.",
            show_default=" and ".join(map(str, DECOYS)),
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the first sample; the others follow.")] = SEED,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Write the result to OUT.json and OUT.md. The cells that they have are not measured again."),
    ] = None,
) -> None:
    """Measure how often each deployment finds the pass key, at lengths below and beyond the trained one.

    Every deployment gets the same samples; prompt and answer together have exactly the length of their column.
    The exit status is 1 when a response ran at another scale than its length asks for.
    """
    try:
        settings = load(config, overrides)
    except SettingRefused as error:
        raise typer.BadParameter(str(error)) from None
    checkpoint = Checkpoint.of(settings)
    chosen = _chosen(variants(checkpoint, settings.scaling.scales), deployment)
    haystacks = [
        Haystack(round(one * checkpoint.trained), others)
        for others in (DECOYS if decoys is None else decoys)
        for one in multiple or MULTIPLES
    ]
    sampled = {
        "samples": samples,
        "seed": seed,
        "concurrency": concurrency,
        "weights_sha256": checkpoint.weights_sha256,
        "settings": overrides or [],
    }
    results = kept(out, sampled) if out else {}
    files: list[pathlib.Path] = []
    with progress_bar(_console) as bar:
        todo = [(variant, _missing(results.get(variant.name, ()), haystacks)) for variant in chosen]
        made = _make_samples(settings, _in_order(missing for _, missing in todo), samples, seed, bar)
        for variant, missing in todo:
            if not missing:
                continue
            own = {haystack: made[haystack] for haystack in missing}
            cells = results.setdefault(variant.name, [])
            try:
                for cell in _measure(variant, config, overrides or [], settings, own, concurrency, checkpoint, bar):
                    cells.append(cell)
                    # After each cell, so that an interrupted run keeps what it has measured.
                    files = write(results, checkpoint.trained, sampled, out) if out else []
            except ServerFailed as error:
                bar.stop()
                _console.print(f"[bold red]failed[/] {variant.name}: {error}", highlight=False)
                raise typer.Exit(1) from None
            rates = ", ".join(f"{cell.correct / cell.samples:.2f}" for cell in cells)
            _console.print(f"{variant.name}: {rates}", highlight=False)
    files = files or (write(results, checkpoint.trained, sampled, out) if out else [])
    for table in (*results_tables(results, checkpoint.trained), *differences_tables(results, checkpoint.trained)):
        _console.print(table.for_terminal())
    _console.print(scales_remark(results), highlight=False)
    for file in files:
        _console.print(f"wrote {file}", highlight=False)
    if any(cell.wrong_scales or cell.wrong_lengths for cells in results.values() for cell in cells):
        raise typer.Exit(1)


def results_tables(results: Results, trained: int) -> list[Table]:
    """A table for each number of decoys, a row for each deployment, a column for each length."""

    def shown(cell: Cell, _: Cell | None) -> str:
        return f"{wilson(cell.correct, cell.samples):.2f}"

    return [
        _table(
            results,
            f"Accuracy for a pass key {among}, with 95 % intervals, {columns[0].samples} samples a cell",
            columns,
            trained,
            shown,
        )
        for among, columns in _by_decoys(results)
    ]


def differences_tables(results: Results, trained: int) -> list[Table]:
    """A table for each number of decoys: the other deployments less the first, sample by sample."""
    first, *others = results

    def shown(cell: Cell, base: Cell | None) -> str:
        return "-" if base is None else difference(cell, base).plus_minus("+.2f")

    return [
        _table(
            {name: results[name] for name in others},
            f"The same for a pass key {among}, as difference from {first}, sample by sample, with 95 % t intervals; "
            f"above 0 is better than {first}",
            columns,
            trained,
            shown,
            results[first],
        )
        for among, columns in _by_decoys(results)
        if others
    ]


def _table(
    results: Results,
    title: str,
    columns: Sequence[Cell],
    trained: int,
    shown: Callable[[Cell, Cell | None], str],
    first: Sequence[Cell] = (),
) -> Table:
    """A cell that was not measured is a dash."""
    base = {cell.haystack: cell for cell in first}
    rows = []
    for name, cells in results.items():
        own = {cell.haystack: cell for cell in cells}
        found = (shown(own[one.haystack], base.get(one.haystack)) if one.haystack in own else "-" for one in columns)
        rows.append((name, *found))
    lengths = (f"{one.haystack.length} tokens ({one.haystack.length / trained:g}x)" for one in columns)
    return Table(title=title, headings=("deployment", *lengths), rows=tuple(rows))


def _by_decoys(results: Results) -> list[tuple[str, list[Cell]]]:
    """For each number of decoys what it is called, and a cell of each length."""
    every = {cell.haystack: cell for cells in results.values() for cell in cells}
    return [
        (
            f"among {decoys} other codes" if decoys else "alone in the text",
            [every[one] for one in _in_order([every]) if one.decoys == decoys],
        )
        for decoys in dict.fromkeys(one.decoys for one in every)
    ]


def _in_order(haystacks: Iterable[Iterable[Haystack]]) -> list[Haystack]:
    """Each once, by length."""
    return sorted({one for some in haystacks for one in some}, key=lambda one: (one.decoys, one.length))


def _missing(cells: Iterable[Cell], haystacks: Iterable[Haystack]) -> list[Haystack]:
    """Those of the haystacks for which there is no cell."""
    found = {cell.haystack for cell in cells}
    return [each for each in haystacks if each not in found]


def difference(cell: Cell, base: Cell) -> Estimate:
    """How much oftener one deployment is right than another, over samples that both answered."""
    gained, lost = len(set(cell.right) - set(base.right)), len(set(base.right) - set(cell.right))
    return mean([1.0] * gained + [-1.0] * lost + [0.0] * (cell.samples - gained - lost))


def scales_remark(results: Results) -> str:
    """Whether every response ran at the scale that its length asks for, in words."""
    every = [(name, cell) for name, cells in results.items() for cell in cells]
    wrong = [
        f"{name} at {cell.haystack.length} tokens ({cell.wrong_scales} of {cell.samples})"
        for name, cell in every
        if cell.wrong_scales
    ]
    miscounted = sum(cell.wrong_lengths for _, cell in every)
    named = sum(count for _, cell in every for scale, count in cell.scales.items() if scale != "none")
    said = (
        f"All {named} responses that name a scale ran at the one expected of their length; those of stock vLLM and of "
        "positions at read time name none."
    )
    if wrong:
        said = f"NOT at the expected scale: {'; '.join(wrong)}."
    if miscounted:
        said += f" The server counted {miscounted} prompts otherwise than the samples do."
    return said


def to_json(results: Results) -> list[dict[str, Any]]:
    """Every cell with its interval."""
    return [
        {"deployment": name}
        | dataclasses.asdict(cell)
        | {"accuracy": dataclasses.asdict(wilson(cell.correct, cell.samples))}
        for name, cells in results.items()
        for cell in cells
    ]


def _chosen(known: dict[str, Variant], names: Sequence[str] | None) -> list[Variant]:
    if unknown := [name for name in names or () if name not in known]:
        raise typer.BadParameter(f"--deployment must be one of {', '.join(known)}, got {', '.join(unknown)}")
    return [known[name] for name in dict.fromkeys(names or known)]


def _make_samples(settings: Settings, haystacks: Sequence[Haystack], samples: int, seed: int, bar: Progress) -> Samples:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    task = bar.add_task("making samples", total=samples * len(haystacks))
    made: Samples = {}
    for haystack in haystacks:
        of_haystack = []
        for index in range(samples):
            of_haystack.append(make_sample(tokenizer, haystack.length, seed + index, decoys=haystack.decoys))
            bar.advance(task)
        made[haystack] = of_haystack
    return made


def _measure(
    variant: Variant,
    config: pathlib.Path,
    overrides: Sequence[str],
    settings: Settings,
    samples: Samples,
    concurrency: int,
    checkpoint: Checkpoint,
    bar: Progress,
) -> Iterator[Cell]:
    task = bar.add_task(f"{variant.name}: starting", total=sum(map(len, samples.values())))
    started = command(variant, config, overrides, settings, served_length(settings, checkpoint))
    with running(started) as address:
        bar.reset(task, description=variant.name)
        for haystack, of_haystack in samples.items():
            yield from asyncio.run(
                ask(
                    address,
                    served_name(settings),
                    variant,
                    {haystack: of_haystack},
                    trained=checkpoint.trained,
                    concurrency=concurrency,
                    advance=lambda: bar.advance(task),
                )
            )


def kept(out: pathlib.Path, sampled: dict[str, Any]) -> Results:
    """What an earlier run wrote of the same samples and settings, so that a run that was stopped goes on.

    Raises:
        BadParameter: when the samples or the settings were others.
    """
    file = out.with_name(out.name + ".json")
    if not file.exists():
        return {}
    before = json.loads(file.read_text(encoding="utf-8"))
    if strange := [name for name, value in sampled.items() if before.get(name) != value]:
        raise typer.BadParameter(f"--out: {file.name} has other {', '.join(strange)}: give another name")
    found: Results = {}
    for cell in before["cells"]:
        fields = {name: cell[name] for name in cell if name not in {"deployment", "accuracy"}}
        found.setdefault(cell["deployment"], []).append(Cell(**fields | {"haystack": Haystack(**cell["haystack"])}))
    return found


def write(results: Results, trained: int, sampled: dict[str, Any], out: pathlib.Path) -> list[pathlib.Path]:
    tables = [*results_tables(results, trained), *differences_tables(results, trained)]
    remark = scales_remark(results)
    result = sampled | {"trained_length": trained, "cells": to_json(results), "remark": remark}
    markdown = record.sections(tables, [remark])
    return record.write(out, result, record.Provenance.of_this_run("tests.benchmarks.accuracy"), markdown)


if __name__ == "__main__":
    typer.run(main)

"""Pass key accuracy over HTTP, by deployment and length: ``python -m tests.benchmarks.accuracy``."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pathlib
from collections.abc import Sequence
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
        typer.Option(help="Write the result to OUT.json and OUT.md. Deployments that are there already stay."),
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
    }
    results = kept(out, sampled, haystacks) if out else {}
    files: list[pathlib.Path] = []
    with progress_bar(_console) as bar:
        missing = [variant for variant in chosen if variant.name not in results]
        made = _make_samples(settings, haystacks, samples, seed, bar) if missing else {}
        for variant in missing:
            try:
                cells = _measure(variant, config, overrides or [], settings, made, concurrency, checkpoint, bar)
            except ServerFailed as error:
                bar.stop()
                _console.print(f"[bold red]failed[/] {variant.name}: {error}", highlight=False)
                raise typer.Exit(1) from None
            results[variant.name] = cells
            rates = ", ".join(f"{cell.correct / cell.samples:.2f}" for cell in cells)
            _console.print(f"{variant.name}: {rates}", highlight=False)
            # After each deployment, so that an interrupted run keeps what it has measured.
            files = write(results, checkpoint.trained, sampled, out) if out else []
    for table in (*results_tables(results, checkpoint.trained), *differences_tables(results, checkpoint.trained)):
        _console.print(table.for_terminal())
    _console.print(scales_remark(results), highlight=False)
    for file in files:
        _console.print(f"wrote {file}", highlight=False)
    if any(cell.wrong_scales or cell.wrong_lengths for cells in results.values() for cell in cells):
        raise typer.Exit(1)


def results_tables(results: Results, trained: int) -> list[Table]:
    """A table for each number of decoys, a row for each deployment, a column for each length."""
    first = next(iter(results.values()))
    return [_table(results, trained, decoys) for decoys in dict.fromkeys(cell.haystack.decoys for cell in first)]


def _table(results: Results, trained: int, decoys: int) -> Table:
    of_table = _of_table(results, decoys)
    columns = next(iter(of_table.values()))
    return Table(
        title=f"Accuracy for a pass key {_among(decoys)}, with 95 % intervals, {columns[0].samples} samples a cell",
        headings=("deployment", *_headings(columns, trained)),
        rows=tuple(
            (name, *(f"{wilson(cell.correct, cell.samples):.2f}" for cell in cells)) for name, cells in of_table.items()
        ),
    )


def differences_tables(results: Results, trained: int) -> list[Table]:
    """A table for each number of decoys: the other deployments less the first, sample by sample."""
    first, *others = results
    every = dict.fromkeys(cell.haystack.decoys for cell in results[first]) if others else ()
    return [_differences_table(_of_table(results, decoys), trained, decoys) for decoys in every]


def _differences_table(of_table: Results, trained: int, decoys: int) -> Table:
    first, *others = of_table
    return Table(
        title=f"The same for a pass key {_among(decoys)}, as difference from {first}, sample by sample, with 95 % t "
        f"intervals; above 0 is better than {first}",
        headings=("deployment", *_headings(of_table[first], trained)),
        rows=tuple(
            (
                name,
                *(
                    difference(cell, base).plus_minus("+.2f")
                    for cell, base in zip(of_table[name], of_table[first], strict=True)
                ),
            )
            for name in others
        ),
    )


def difference(cell: Cell, base: Cell) -> Estimate:
    """How much oftener one deployment is right than another, over samples that both answered."""
    gained, lost = len(set(cell.right) - set(base.right)), len(set(base.right) - set(cell.right))
    return mean([1.0] * gained + [-1.0] * lost + [0.0] * (cell.samples - gained - lost))


def _of_table(results: Results, decoys: int) -> Results:
    return {name: [cell for cell in cells if cell.haystack.decoys == decoys] for name, cells in results.items()}


def _among(decoys: int) -> str:
    return f"among {decoys} other codes" if decoys else "alone in the text"


def _headings(columns: Sequence[Cell], trained: int) -> list[str]:
    return [f"{cell.haystack.length} tokens ({cell.haystack.length / trained:g}x)" for cell in columns]


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
) -> list[Cell]:
    task = bar.add_task(f"{variant.name}: starting", total=sum(map(len, samples.values())))
    started = command(variant, config, overrides, settings, served_length(settings, checkpoint))
    with running(started) as address:
        bar.reset(task, description=variant.name)
        return asyncio.run(
            ask(
                address,
                served_name(settings),
                variant,
                samples,
                trained=checkpoint.trained,
                concurrency=concurrency,
                advance=lambda: bar.advance(task),
            )
        )


def kept(out: pathlib.Path, sampled: dict[str, Any], haystacks: Sequence[Haystack]) -> Results:
    """What an earlier run wrote of the same samples, so that a run that was stopped goes on."""
    file = out.with_name(out.name + ".json")
    if not file.exists():
        return {}
    before = json.loads(file.read_text(encoding="utf-8"))
    found: Results = {}
    for cell in before["cells"]:
        fields = {name: cell[name] for name in cell if name not in {"deployment", "accuracy"}}
        found.setdefault(cell["deployment"], []).append(Cell(**fields | {"haystack": Haystack(**cell["haystack"])}))
    strange = [name for name, value in sampled.items() if before[name] != value]
    if any([cell.haystack for cell in cells] != list(haystacks) for cells in found.values()):
        strange.append("lengths")
    if strange:
        raise typer.BadParameter(f"--out: {file.name} has other {', '.join(strange)}: give another name")
    return found


def write(results: Results, trained: int, sampled: dict[str, Any], out: pathlib.Path) -> list[pathlib.Path]:
    tables = [*results_tables(results, trained), *differences_tables(results, trained)]
    remark = scales_remark(results)
    result = sampled | {"trained_length": trained, "cells": to_json(results), "remark": remark}
    markdown = "\n\n".join([*(f"{table.title}:\n\n{table.as_markdown()}" for table in tables), remark])
    return record.write(out, result, record.Provenance.of_this_run("tests.benchmarks.accuracy"), markdown)


if __name__ == "__main__":
    typer.run(main)

"""What our scheduler adds to a step of stock vLLM's, without a model: ``python -m tests.benchmarks.scheduler``."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.progress import progress_bar
from tests.benchmarks.scheduler import admission, crossing, growth, steady
from tests.benchmarks.scheduler.core import Side

RUNNING, BLOCKS = (1, 32, 256, 1024), (16, 512, 8192)
SIDES: tuple[Side, ...] = ("stock", "connector", "pin", "rerotate")
PROMPTS = (8_192, 131_072, 1_048_576)
PARTS = ("steady", "crossing", "admission", "growth")
_console = Console(soft_wrap=True)

Advance = Callable[[], None]
Part = tuple[list[Any], Table]


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(PARTS)}; may be repeated. All when left out.")
    ] = None,
    running: Annotated[
        list[int] | None, typer.Option(min=1, help=f"Requests at once; {RUNNING} when left out.")
    ] = None,
    blocks: Annotated[list[int] | None, typer.Option(min=2, help=f"Blocks of each; {BLOCKS} when left out.")] = None,
    steps: Annotated[int, typer.Option(min=8, help="Steps of each side and cell.")] = 200,
    repetitions: Annotated[int, typer.Option(min=1, help="Crossings and arrivals of each case.")] = 5,
    prompt: Annotated[
        list[int] | None, typer.Option(min=64, help=f"Tokens that arrive; {PROMPTS} when left out.")
    ] = None,
    requests: Annotated[int, typer.Option(min=60, help="Random requests of the part growth.")] = 60_000,
    out: Annotated[pathlib.Path | None, typer.Option(help="Write the result to OUT.json and OUT.md.")] = None,
) -> None:
    """Measure CPU time of the thread that an engine's loop runs in, side by side with stock vLLM's scheduler.

    The side "connector" is stock vLLM's scheduler with a connector that does nothing.
    """
    if unknown := sorted(set(only or ()) - set(PARTS)):
        raise typer.BadParameter(f"parts are {', '.join(PARTS)}, got {', '.join(unknown)}", param_hint="--only")
    torch.set_num_threads(1)
    for name in ("vllm", "vllm.posenc"):
        logging.getLogger(name).setLevel(logging.ERROR)
    cells = [(one, each) for one in running or RUNNING for each in blocks or BLOCKS]
    parts: dict[str, Callable[[Advance], Part]] = {
        "steady": lambda advance: _steady(cells, steps, advance),
        "crossing": lambda advance: _crossing(blocks or BLOCKS, repetitions, advance),
        "admission": lambda advance: _admission(prompt or PROMPTS, repetitions, advance),
        "growth": lambda advance: _growth(requests, advance),
    }
    found: dict[str, Part] = {}
    with progress_bar(_console) as bar:
        for name in only or PARTS:
            task = bar.add_task(name, total=None)
            found[name] = parts[name](lambda task=task: bar.advance(task))  # type: ignore[misc]
            bar.update(task, total=1, completed=1)
    for _, table in found.values():
        _console.print(table.for_terminal())
    if out:
        markdown = record.sections(table for _, table in found.values())
        result = {name: [dataclasses.asdict(row) for row in rows] for name, (rows, _) in found.items()}
        provenance = record.Provenance.of_this_run("tests.benchmarks.scheduler")
        for file in record.write(out, result, provenance, markdown):
            _console.print(f"written: {file.name}", highlight=False)


def _steady(cells: list[tuple[int, int]], steps: int, advance: Advance) -> Part:
    rows = [
        steady.measure(running, blocks, SIDES, steps=steps, ahead=ahead, advance=advance)
        for running, blocks in cells
        for ahead in (True, False)
    ]
    return rows, steady.table(rows)


def _crossing(blocks: tuple[int, ...] | list[int], repetitions: int, advance: Advance) -> Part:
    cases: list[tuple[Any, bool]] = [("rerotate", True), ("rerotate", False), ("recompute", True)]
    rows = [
        crossing.measure(how, each, copied=copied, repetitions=repetitions, advance=advance)
        for how, copied in cases
        for each in blocks
    ]
    return rows, crossing.table(rows)


def _admission(prompts: tuple[int, ...] | list[int], repetitions: int, advance: Advance) -> Part:
    rows = [
        admission.measure(case, tokens, repetitions=repetitions, advance=advance)
        for tokens in prompts
        for case in admission.CASES
    ]
    return rows, admission.table(rows)


def _growth(requests: int, advance: Advance) -> Part:
    rows = growth.measure(requests, points=6, advance=advance)
    return rows, growth.table(rows)


if __name__ == "__main__":
    typer.run(main)

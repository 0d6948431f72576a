"""Test error on the counting task over HTTP, by encoding and variables: ``python -m tests.benchmarks.counting``."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import pathlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console

from posenc_runtime.zoo.counting.evaluate import NUM_VARIABLES, programs
from posenc_runtime.zoo.counting.recipe import WEIGHTS, Recipe
from posenc_runtime.zoo.counting.task import LONGEST, Program, is_correct
from posenc_runtime.zoo.outputs import weights_sha256
from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.client import ask_cell_by_cell
from tests.benchmarks.intervals import wilson
from tests.benchmarks.progress import progress_bar
from tests.benchmarks.servers import Command, ServerFailed, running

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# Far from the seeds with which the decoders were trained and watched.
SEED = 7_000_000
NAME = "counting"
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "max_num_seqs": 16,
    "kv_cache_memory_bytes": 2**27,
}
# Golovneva et al. 2024, table 3: test error in percent at 1, 3 and 5 variables, and what the paper calls the encoding.
PUBLISHED = {
    "learned": ("absolute", (5.3, 67.6, 71.5)),
    "shaw": ("relative", (1.1, 17.8, 22.4)),
    "cope": ("CoPE", (0.0, 1.2, 7.4)),
}
_console = Console(soft_wrap=True)


@dataclasses.dataclass
class Cell:
    """How one decoder answered the programs of one number of variables.

    Attributes:
        wrong_lengths: prompts that the server counted other than we did.
    """

    num_variables: int
    samples: int = 0
    errors: int = 0
    wrong_lengths: int = 0

    def count(self, program: Program, answer: str, prompt_tokens: int | None) -> None:
        """Take one response in."""
        self.samples += 1
        self.errors += not is_correct(program, answer)
        # The tokenizer puts a start before the words.
        self.wrong_lengths += prompt_tokens != len(program.words) + 1


Results = dict[str, list[Cell]]
Samples = Mapping[int, Sequence[Program]]


def main(
    samples: Annotated[int, typer.Option(min=1, help="Programs a cell; at least 1000 for a result to quote.")] = 1000,
    encoding: Annotated[
        list[str] | None, typer.Option(help="A shipped encoding; may be repeated. All when left out.")
    ] = None,
    weights: Annotated[
        pathlib.Path, typer.Option(help="Folder that holds a checkpoint for each encoding.", show_default="the shipped")
    ] = WEIGHTS,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the first program; the others follow.")] = SEED,
    out: Annotated[pathlib.Path | None, typer.Option(help="Write the result to OUT.json and OUT.md.")] = None,
) -> None:
    """Measure how often a decoder of each encoding counts wrong. All get the same programs.

    The exit status is 1 when the server counted the tokens of a prompt otherwise than training did.
    """
    folders = chosen(weights, encoding)
    made = {number: programs(number, samples, seed) for number in NUM_VARIABLES}
    sampled = {
        "samples": samples,
        "seed": seed,
        "concurrency": concurrency,
        "weights_sha256": {name: weights_sha256(folder) for name, folder in folders.items()},
    }
    results: Results = {}
    files: list[pathlib.Path] = []
    with progress_bar(_console) as bar:
        for name, folder in folders.items():
            task = bar.add_task(f"{name}: starting", total=samples * len(made))
            try:
                with tempfile.TemporaryDirectory() as place, running(command(folder, pathlib.Path(place))) as address:
                    bar.reset(task, description=name)
                    results[name] = asyncio.run(ask(address, made, concurrency, functools.partial(bar.advance, task)))
            except ServerFailed as error:
                bar.stop()
                _console.print(f"[bold red]failed[/] {name}: {error}", highlight=False)
                raise typer.Exit(1) from None
            _console.print(f"{name}: {', '.join(f'{cell.errors} wrong' for cell in results[name])}", highlight=False)
            # After each encoding, so that an interrupted run keeps what it has measured.
            files = write(results, sampled, out) if out else []
    _console.print(results_table(results).for_terminal())
    _console.print(remark(results), highlight=False)
    for file in files:
        _console.print(f"wrote {file}", highlight=False)
    if any(cell.wrong_lengths for cells in results.values() for cell in cells):
        raise typer.Exit(1)


def chosen(weights: pathlib.Path, names: Sequence[str] | None) -> dict[str, pathlib.Path]:
    """Folders of checkpoints by encoding, in the order of the recipe."""
    there = {name: weights / name for name in Recipe.load().encodings if (weights / name / "config.json").exists()}
    if unknown := [name for name in names or () if name not in there]:
        raise typer.BadParameter(f"--encoding must be one of {', '.join(there)}, got {', '.join(unknown)}")
    return {name: folder for name, folder in there.items() if not names or name in names}


def command(folder: pathlib.Path, place: pathlib.Path) -> Command:
    """How the server of a checkpoint is started.

    Args:
        place: an empty folder, in which its deployment is written.
    """
    deployment = {
        "model": str(folder.resolve()),
        "served_model_name": NAME,
        "max_model_len": LONGEST,
        "engine": ENGINE,
    }
    file = place / "deployment.yaml"
    file.write_text(yaml.safe_dump(deployment), encoding="utf-8")
    sets = ("server.host=127.0.0.1", "server.port={port}")
    posenc = str(pathlib.Path(sys.executable).with_name("posenc"))
    return Command((posenc, "serve", "--config", str(file), *(part for one in sets for part in ("--set", one))))


async def ask(address: str, samples: Samples, concurrency: int, advance: Callable[[], None]) -> list[Cell]:
    """Send every program as a text and compare what comes back.

    Args:
        concurrency: requests at once.
        advance: called after every response.
    """

    async def one(client: AsyncOpenAI, cell: Cell, program: Program) -> None:
        # One token: an answer is one, and no model may go on until it has said the right number.
        response = await client.completions.create(model=NAME, prompt=program.text, temperature=0, max_tokens=1)
        prompt_tokens = None if response.usage is None else response.usage.prompt_tokens
        cell.count(program, response.choices[0].text, prompt_tokens)

    cells = [(Cell(num_variables), made) for num_variables, made in samples.items()]
    return await ask_cell_by_cell(address, cells, one, concurrency=concurrency, advance=advance)


def results_table(results: Results) -> Table:
    """A row for each encoding, two columns for each number of variables: measured here, and published."""
    first = next(iter(results.values()))
    headings = ["encoding"]
    for cell in first:
        headings += (f"{cell.num_variables} variable{'s' if cell.num_variables > 1 else ''}", "paper")
    rows = []
    for name, cells in results.items():
        called, published = PUBLISHED.get(name, ("", ()))
        row = [f"{name} (the paper's {called})" if called and called.lower() != name else name]
        for cell in cells:
            theirs = dict(zip(NUM_VARIABLES, published, strict=False)).get(cell.num_variables)
            row += (percent(cell), "" if theirs is None else f"{theirs:.1f}")
        rows.append(tuple(row))
    return Table(
        title=f"Wrong answers of the counting task in %, with 95 % intervals, {first[0].samples} programs a cell",
        headings=tuple(headings),
        rows=tuple(rows),
    )


def percent(cell: Cell) -> str:
    share = wilson(cell.errors, cell.samples)
    return f"{100 * share.value:.1f} ({100 * share.low:.1f} to {100 * share.high:.1f})"


def remark(results: Results) -> str:
    """Whose numbers stand side by side, and whether the server read the prompts as training did."""
    miscounted = sum(cell.wrong_lengths for cells in results.values() for cell in cells)
    said = (
        "The paper trains one larger decoder for each number of variables, on the last answer alone; ours is one small "
        "decoder for all three, also asked in between, by `posenc_runtime/zoo/counting/recipe.yaml`."
    )
    return said + (f" The server counted {miscounted} prompts otherwise than training does." if miscounted else "")


def to_json(results: Results) -> list[dict[str, Any]]:
    """Every cell with its interval, in shares and not in percent."""
    return [
        {"encoding": name} | dataclasses.asdict(cell) | {"error": dataclasses.asdict(wilson(cell.errors, cell.samples))}
        for name, cells in results.items()
        for cell in cells
    ]


def write(results: Results, sampled: dict[str, Any], out: pathlib.Path) -> list[pathlib.Path]:
    table = results_table(results)
    said = remark(results)
    result = sampled | {"cells": to_json(results), "remark": said}
    markdown = f"{table.title}:\n\n{table.as_markdown()}\n\n{said}"
    return record.write(out, result, record.Provenance.of_this_run("tests.benchmarks.counting"), markdown)


if __name__ == "__main__":
    typer.run(main)

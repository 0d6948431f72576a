"""Perplexity and accuracy beyond the trained length, by encoding: ``python -m tests.benchmarks.lengths --out FILE``.

The decoders of the length zoo are served one after another, and the client sees nothing of them but their answers. What
a result file already has of the same weights is not measured again, so that a run that was killed goes on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console

from posenc_runtime.zoo.lengths.problems import TASKS, Problem, problems
from posenc_runtime.zoo.lengths.recipe import SUBJECTS, WEIGHTS, Recipe
from posenc_runtime.zoo.outputs import weights_sha256
from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.client import ask_cell_by_cell
from tests.benchmarks.intervals import Estimate, wilson
from tests.benchmarks.progress import progress_bar
from tests.benchmarks.servers import Command, ServerFailed, running

if TYPE_CHECKING:
    from openai import AsyncOpenAI

NAME = "lengths"
LENGTHS = (512, 1024, 2048, 4096, 8192)  # tokens of a request of text
# Every length has the same text, in pieces of so many blocks that start, text and the one token that a request must
# generate fit: 512 tokens hold a start, one block and the token.
BLOCK = 510
BLOCKS_PER_FILE = LENGTHS[-1] // LENGTHS[0]
PROBLEM_LENGTHS = {"copying": (10, 12, 14, 16, 20), "addition": (6, 7, 8, 10, 12)}
LONGEST_PROBLEM = 64  # tokens, with the answer
# Far from the seeds with which the decoders were trained.
SEED = 7_000_000
# Better to worse beyond the trained length, as far as a paper has it, in our names. Encodings in one place are not
# told apart.
PUBLISHED = {
    "text": ("Press et al. 2022, figure 1", (("alibi",), ("t5",), ("rope",), ("sinusoidal",))),
    "tasks": (
        "Kazemnejad et al. 2023, figures 2 and 3",
        (("none", "t5"), ("alibi",), ("rope", "sinusoidal")),
    ),
}
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": False,
    "kv_cache_memory_bytes": 2**28,
}
# What an encoding does by itself is asked for, so that RoPE is not scaled.
UNSCALED = {"rope_type": "default", "scales": [1], "allow_beyond_trained": True}
_console = Console(soft_wrap=True)


@dataclasses.dataclass
class TextCell:
    """How well a decoder predicts the held-out text in requests of one length.

    Attributes:
        length: tokens of a request.
        blocks: mean negative log probability of a token, in nats, of each block of text.
    """

    length: int
    blocks: list[float] = dataclasses.field(default_factory=list)

    def perplexity(self) -> Estimate:
        """With a 95 % interval from the normal distribution of the means of blocks."""
        mean = sum(self.blocks) / len(self.blocks)
        variance = sum((block - mean) ** 2 for block in self.blocks) / max(1, len(self.blocks) - 1)
        half = 1.96 * math.sqrt(variance / len(self.blocks))
        return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


@dataclasses.dataclass
class TaskCell:
    """How many problems of one task and length a decoder solved."""

    task: str
    length: int
    samples: int = 0
    solved: int = 0

    def count(self, problem: Problem, completion: str) -> None:
        self.samples += 1
        self.solved += problem.is_solved_by(completion)


Cell = TextCell | TaskCell


def main(
    subject: Annotated[
        list[str] | None, typer.Option(help="text or tasks; may be repeated. Both when left out.")
    ] = None,
    encoding: Annotated[
        list[str] | None, typer.Option(help="A trained encoding; may be repeated. All when left out.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Problems a cell.")] = 100,
    weights: Annotated[
        pathlib.Path, typer.Option(help="Folder of checkpoints, SUBJECT/ENCODING each.", show_default="the shipped")
    ] = WEIGHTS,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the problems.")] = SEED,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Write the result to OUT.json and OUT.md, and go on from OUT.json.")
    ] = None,
) -> None:
    """Measure each encoding at the trained length and beyond it. All get the same text and the same problems."""
    if unknown := [name for name in subject or () if name not in SUBJECTS]:
        raise typer.BadParameter(f"--subject must be one of {', '.join(SUBJECTS)}, got {', '.join(unknown)}")
    sampled = {"samples": samples, "seed": seed, "held_out_sha256": _held_out_digest()}
    runs = known(out, sampled)
    files: list[pathlib.Path] = []
    with progress_bar(_console) as bar:
        for kind in subject or SUBJECTS:
            for name, folder in chosen(weights, kind, encoding).items():
                digest = weights_sha256(folder)
                key = f"{kind}/{name}"
                if runs.get(key, {}).get("weights_sha256") == digest:
                    continue
                asked = text_pieces(folder) if kind == "text" else task_problems(samples, seed)
                task = bar.add_task(f"{key}: starting", total=sum(len(made) for _, made in asked))
                try:
                    with (
                        tempfile.TemporaryDirectory() as place,
                        running(command(folder, kind, pathlib.Path(place))) as address,
                    ):
                        bar.reset(task, description=key)
                        advance = functools.partial(bar.advance, task)
                        cells = asyncio.run(ask(address, kind, asked, concurrency, advance))
                except ServerFailed as error:
                    bar.stop()
                    _console.print(f"[bold red]failed[/] {key}: {error}", highlight=False)
                    raise typer.Exit(1) from None
                runs[key] = {"weights_sha256": digest, "cells": [dataclasses.asdict(cell) for cell in cells]}
                # After each decoder, so that an interrupted run keeps what it has measured.
                files = write(runs, sampled, out) if out else []
    for table in tables(runs):
        _console.print(table.for_terminal())
    for file in files:
        _console.print(f"wrote {file}", highlight=False)


def known(out: pathlib.Path | None, sampled: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a result file has of the same samples, by ``SUBJECT/ENCODING``.

    Raises:
        typer.BadParameter: when the file is of other samples.
    """
    file = out.with_name(out.name + ".json") if out else None
    if file is None or not file.exists():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    if differing := [key for key, value in sampled.items() if found.get(key) != value]:
        raise typer.BadParameter(
            f"--out must be a new file or one of the same samples, but {', '.join(differing)} differ"
        )
    runs: dict[str, dict[str, Any]] = found["runs"]
    return runs


def chosen(weights: pathlib.Path, subject: str, names: Sequence[str] | None) -> dict[str, pathlib.Path]:
    """Folders of checkpoints by encoding, in the order of the recipe."""
    folders = {name: weights / subject / name for name in Recipe.load(subject).encodings}
    there = {name: folder for name, folder in folders.items() if (folder / "recipe.yaml").exists()}
    if unknown := [name for name in names or () if name not in there]:
        raise typer.BadParameter(f"--encoding must be one of {', '.join(there)}, got {', '.join(unknown)}")
    return {name: folder for name, folder in there.items() if not names or name in names}


def command(folder: pathlib.Path, subject: str, place: pathlib.Path) -> Command:
    """How the server of a checkpoint is started.

    Args:
        place: an empty folder, in which its deployment is written.
    """
    longest = min(LENGTHS[-1], limit(folder) or LENGTHS[-1]) if subject == "text" else LONGEST_PROBLEM
    deployment: dict[str, Any] = {
        "model": str(folder.resolve()),
        "served_model_name": NAME,
        "max_model_len": longest,
        "engine": ENGINE,
    }
    if folder.name == "rope":
        deployment["scaling"] = UNSCALED
    file = place / "deployment.yaml"
    file.write_text(yaml.safe_dump(deployment), encoding="utf-8")
    sets = ("server.host=127.0.0.1", "server.port={port}")
    posenc = str(pathlib.Path(sys.executable).with_name("posenc"))
    return Command((posenc, "serve", "--config", str(file), *(part for one in sets for part in ("--set", one))))


def limit(folder: pathlib.Path) -> int | None:
    """The longest request, tokens, that a checkpoint's encoding has positions for; None if there is no limit."""
    import torch

    from posenc_runtime.decoder import positions
    from posenc_runtime.decoder.config import PosencConfig

    config = PosencConfig.from_pretrained(folder)
    return positions.encoding(config.position_encoding_type).longest(config, torch.float32)


def text_pieces(folder: pathlib.Path) -> list[tuple[TextCell, list[list[int]]]]:
    """The held-out text as prompts, for each length that the checkpoint can be asked at."""
    longest = limit(folder)
    rows = _held_out_rows()
    return [
        (TextCell(length), [piece for row in rows for piece in pieces(row, length)])
        for length in LENGTHS
        if longest is None or length <= longest
    ]


def pieces(row: Sequence[int], length: int) -> list[list[int]]:
    """Prompts that do not overlap and together have the whole row, each after a start token."""
    from posenc_runtime.zoo.lengths import vocabulary
    from posenc_runtime.zoo.tokenizer import end_of_text_id

    start = end_of_text_id(vocabulary.of_text())
    size = length // LENGTHS[0] * BLOCK
    return [[start, *row[place : place + size]] for place in range(0, len(row), size)]


def task_problems(samples: int, seed: int) -> list[tuple[TaskCell, list[Problem]]]:
    return [
        (TaskCell(task, length), problems(task, length, samples, seed))
        for task in TASKS
        for length in PROBLEM_LENGTHS[task]
    ]


async def ask(
    address: str,
    subject: str,
    asked: Sequence[tuple[Any, Sequence[Any]]],
    concurrency: int,
    advance: Callable[[], None],
) -> list[Cell]:
    """Send everything, cell by cell.

    Args:
        concurrency: requests at once.
        advance: called after every response.
    """

    async def text(client: AsyncOpenAI, cell: TextCell, prompt: list[int]) -> None:
        response = await client.completions.create(
            model=NAME, prompt=prompt, temperature=0, max_tokens=1, extra_body={"prompt_logprobs": 0}
        )
        said: Any = response.choices[0]
        # The start has no probability.
        found = [next(iter(entry.values()))["logprob"] for entry in said.prompt_logprobs[1:]]
        cell.blocks += [-sum(found[i : i + BLOCK]) / BLOCK for i in range(0, len(found), BLOCK)]

    async def problem(client: AsyncOpenAI, cell: TaskCell, sample: Problem) -> None:
        room = len(sample.answer) + 2
        response = await client.completions.create(model=NAME, prompt=sample.text, temperature=0, max_tokens=room)
        cell.count(sample, response.choices[0].text)

    one = text if subject == "text" else problem
    return await ask_cell_by_cell(address, asked, one, concurrency=concurrency, advance=advance)


def tables(runs: dict[str, dict[str, Any]]) -> list[Table]:
    """A table of perplexities, and one for each task."""
    made = []
    if found := _of_subject(runs, "text"):
        rows = []
        for name, cells in found.items():
            by_length = {cell["length"]: TextCell(**cell) for cell in cells}
            shown = (by_length[n].perplexity() if n in by_length else None for n in LENGTHS)
            rows.append(
                (name, *("none" if one is None else f"{one.value:.1f}" for one in shown), published("text", name))
            )
        headings = ("encoding", *(f"{n:,} tokens ({n // LENGTHS[0]}x)" for n in LENGTHS), "paper's place")
        made.append(Table("Perplexity of held-out text, nonoverlapping", headings, tuple(rows)))
    for task in TASKS:
        rows = []
        for name, cells in _of_subject(runs, "tasks").items():
            own = [TaskCell(**cell) for cell in cells if cell["task"] == task]
            rows.append((name, *(f"{wilson(cell.solved, cell.samples):.2f}" for cell in own), published("tasks", name)))
        if rows:
            trained = Recipe.load("tasks").longest[task]
            headings = (
                "encoding",
                *(f"{n} {TASKS[task].unit} ({n / trained:.2g}x)" for n in PROBLEM_LENGTHS[task]),
                "paper's place",
            )
            made.append(Table(f"Accuracy of {task}", headings, tuple(rows)))
    return made


def published(subject: str, encoding: str) -> str:
    """The encoding's place in the order that the subject's paper has, if it is there."""
    for place, names in enumerate(PUBLISHED[subject][1], start=1):
        if encoding in names:
            return str(place)
    return ""


def write(runs: dict[str, dict[str, Any]], sampled: dict[str, Any], out: pathlib.Path) -> list[pathlib.Path]:
    said = record.sections(tables(runs))
    return record.write(out, sampled | {"runs": runs}, record.Provenance.of_this_run("tests.benchmarks.lengths"), said)


def _of_subject(runs: dict[str, dict[str, Any]], subject: str) -> dict[str, list[dict[str, Any]]]:
    """The cells of each encoding, in the order of the recipe."""
    names = (name for name in Recipe.load(subject).encodings if f"{subject}/{name}" in runs)
    return {name: runs[f"{subject}/{name}"]["cells"] for name in names}


@functools.cache
def _held_out_rows() -> tuple[tuple[int, ...], ...]:
    """The first blocks of each held-out file, tokens."""
    from posenc_runtime.zoo.lengths import vocabulary
    from posenc_runtime.zoo.lengths.lessons import held_out_texts

    tok = vocabulary.of_text()
    texts = held_out_texts(Recipe.load("text")).values()
    return tuple(tuple(tok.encode(text, verbose=False)[: BLOCK * BLOCKS_PER_FILE]) for text in texts)


def _held_out_digest() -> str:
    return hashlib.sha256(json.dumps(_held_out_rows()).encode()).hexdigest()


if __name__ == "__main__":
    typer.run(main)

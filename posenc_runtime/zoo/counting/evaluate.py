"""Test error on the counting task in this process: ``python -m posenc_runtime.zoo.counting.evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel

from posenc_runtime.decoder.decoder import PosencForCausalLM
from posenc_runtime.zoo.counting.recipe import WEIGHTS
from posenc_runtime.zoo.counting.task import Program, make_program
from posenc_runtime.zoo.counting.vocabulary import END, IDS, ids_of
from posenc_runtime.zoo.passkey import wilson_interval

# Training draws its programs from seeds of another form, so that no test program is drawn from a training seed.
EVALUATION_SEED = 1_000_000
NUM_VARIABLES = (1, 3, 5)
PROGRAMS_PER_BATCH = 8


def programs(num_variables: int, samples: int, seed: int = EVALUATION_SEED) -> list[Program]:
    return [make_program(num_variables, seed + index) for index in range(samples)]


def load_model(checkpoint: Path) -> PosencForCausalLM:
    """The checkpoint in float32, on the CPU."""
    loaded: PosencForCausalLM = PosencForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    loaded.eval()
    return loaded


def prompts(asked: Sequence[Program]) -> tuple[Tensor, Tensor]:
    """Prompts, padded at the end, and the index of the last token of each."""
    rows = [ids_of(program) for program in asked]
    ids = torch.full((len(rows), max(map(len, rows))), END)
    for row, found in zip(ids, rows, strict=True):
        row[: len(found)] = torch.tensor(found)
    return ids, torch.tensor([len(row) - 1 for row in rows])


@torch.inference_mode()
def count_errors(model: PreTrainedModel, asked: Sequence[Program]) -> int:
    """The number of programs for which the most likely token is not the answer."""
    was_training = model.training
    model.eval()
    by_length = sorted(asked, key=lambda program: len(program.words))
    errors = 0
    for first in range(0, len(by_length), PROGRAMS_PER_BATCH):
        batch = by_length[first : first + PROGRAMS_PER_BATCH]
        ids, last = prompts(batch)
        read: Any = model
        logits = read(ids.to(model.device), use_cache=False).logits[torch.arange(len(batch)), last]
        wanted = torch.tensor([IDS[program.answer] for program in batch], device=model.device)
        errors += int((logits.argmax(-1) != wanted).sum())
    model.train(was_training)
    return errors


def error_cell(errors: int, samples: int) -> str:
    low, high = wilson_interval(errors, samples)
    return f"{100 * errors / samples:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def main(
    checkpoints: Annotated[
        list[Path] | None, typer.Argument(help="Folders of checkpoints. The shipped ones when left out.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Programs a cell.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the first program; the others follow.")] = EVALUATION_SEED,
) -> None:
    """Print the share of wrong answers, in percent, of each checkpoint by the number of variables."""
    table = Table(title=f"counting: test error in %, {samples} programs a cell, 95 % Wilson interval")
    table.add_column("encoding")
    for number in NUM_VARIABLES:
        table.add_column(f"{number} variable{'s' if number > 1 else ''}", justify="right")
    for folder in checkpoints or sorted(WEIGHTS.iterdir()):
        model = load_model(folder)
        cells = [error_cell(count_errors(model, programs(n, samples, seed)), samples) for n in NUM_VARIABLES]
        table.add_row(model.config.position_encoding_type, *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)

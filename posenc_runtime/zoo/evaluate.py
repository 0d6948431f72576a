"""Pass key accuracy by length and by scaling, measured with one forward pass per sample and without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from posenc_runtime.zoo import passkey, tokenizer
from posenc_runtime.zoo.scaling import Scaling, factor_for, scaled

DEMO = Path(__file__).parent / "demo"
EVALUATION_SEED = 1_000_000
TOKENS_PER_BATCH = 16_384


def load_model(checkpoint: Path, device: str | None = None) -> LlamaForCausalLM:
    """The checkpoint in float32, on ``device``; without one, on a GPU if there is one, or else on the CPU."""
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    loaded: LlamaForCausalLM = model.to(place)
    return loaded


def sample_ids(
    tok: PreTrainedTokenizerFast, length: int, samples: int, seed: int, decoys: int = 0
) -> tuple[torch.Tensor, list[int]]:
    """Prompts with their answers, and where each answer begins."""
    made = [passkey.make_sample(tok, length, seed + i, decoys=decoys) for i in range(samples)]
    ids = torch.tensor([tok.encode(s.prompt + s.answer) for s in made])
    return ids, [s.prompt_tokens for s in made]


@torch.inference_mode()
def correct_answers(model: LlamaForCausalLM, ids: torch.Tensor, starts: list[int], scaling: Scaling) -> int:
    """How many samples greedy decoding would answer: every answer token is the most likely one at its position."""
    correct = 0
    size = max(1, TOKENS_PER_BATCH // ids.shape[1])
    device = model.device
    keep = ids.shape[1] - min(starts) + 1
    with scaled(model, scaling):
        for first in range(0, len(ids), size):
            batch = ids[first : first + size].to(device)
            logits = model(batch, use_cache=False, logits_to_keep=keep).logits
            matches = logits[:, :-1].argmax(-1) == batch[:, -keep + 1 :]
            correct += int(matches.all(1).sum())
    return correct


def scalings_for(length: int, trained_length: int) -> dict[str, Scaling]:
    """The columns of the table: unscaled, each method at the factor of this length, and two at a static factor."""
    factor = factor_for(length, trained_length)
    return {
        "unscaled": Scaling(),
        "yarn": Scaling("yarn", factor),
        "ntk": Scaling("ntk", factor),
        "linear": Scaling("linear", factor),
        "static yarn x8": Scaling("yarn", 8.0),
        "static ntk x8": Scaling("ntk", 8.0),
    }


def cell(correct: int, samples: int) -> str:
    low, high = passkey.wilson_interval(correct, samples)
    return f"{correct / samples:.3f} [dim]{low:.2f}-{high:.2f}[/dim]"


def accuracy_table(
    model: LlamaForCausalLM, tok: PreTrainedTokenizerFast, lengths: list[int], samples: int, seed: int, decoys: int
) -> Table:
    trained = model.config.max_position_embeddings
    columns = list(scalings_for(trained, trained))
    title = f"pass key accuracy among {decoys} other codes, {samples} samples a cell, 95 % Wilson interval"
    table = Table(title=title)
    for name in ("tokens", "factor", *columns):
        table.add_column(name, justify="right")
    for length in lengths:
        ids, starts = sample_ids(tok, length, samples, seed, decoys)
        known: dict[Scaling, int] = {}
        cells = []
        for scaling in scalings_for(length, trained).values():
            plain = Scaling() if scaling.factor == 1 else scaling
            if plain not in known:
                known[plain] = correct_answers(model, ids, starts, plain)
            cells.append(cell(known[plain], samples))
        table.add_row(str(length), f"{factor_for(length, trained):g}", *cells)
    return table


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of the checkpoint.")] = DEMO,
    lengths: Annotated[str, typer.Option(help="Total lengths in tokens, answer included.")] = "256,512,1024,2048,4096",
    samples: Annotated[int, typer.Option(help="Samples a cell.")] = 200,
    seed: Annotated[int, typer.Option(help="First seed of the samples.")] = EVALUATION_SEED,
    decoys: Annotated[int, typer.Option(help="Other codes in the haystack, which make it harder.")] = 0,
) -> None:
    """Print the accuracy of a checkpoint by prompt length and scaling."""
    wanted = [int(n) for n in lengths.split(",")]
    table = accuracy_table(load_model(checkpoint), tokenizer.load(checkpoint), wanted, samples, seed, decoys)
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)

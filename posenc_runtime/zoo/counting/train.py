"""Train a decoder on the counting task: ``python -m posenc_runtime.zoo.counting.train --encoding cope --out DIR``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
import yaml
from rich.console import Console
from torch import Tensor
from torch.nn import functional

from posenc_runtime.decoder.decoder import PosencForCausalLM
from posenc_runtime.zoo import outputs
from posenc_runtime.zoo.counting import evaluate, vocabulary
from posenc_runtime.zoo.counting.batches import NO_TARGET, Batch, make_batch
from posenc_runtime.zoo.counting.blocks import attend_in_blocks
from posenc_runtime.zoo.counting.recipe import Recipe
from posenc_runtime.zoo.run import Run

# The final evaluation uses other programs. These choose nothing: the last weights are the ones that are kept.
WATCH_SEED = 5_000_000
WATCHED_PROGRAMS = 100
WATCH_EVERY = 900
SAVE_EVERY = 450
CURVE_COLUMNS = (
    "step", "tokens", "seconds", "statements", "loss", "answer_loss", "mention_loss", "name_loss",
    "answer_error", "mention_error", "name_error", "lr_scale",
)  # fmt: skip


def mean_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, float]:
    """The mean loss over places with a target, and the share of these places where another token is most likely.

    Both are 0 if no place has a target.

    Args:
        logits: ``[batch, num_tokens, vocab_size]``.
        targets: ``[batch, num_tokens]``.
    """
    asked = targets != NO_TARGET
    found, wanted = logits[asked], targets[asked]
    count = max(1, len(wanted))
    loss = functional.cross_entropy(found, wanted, reduction="sum") / count
    return loss, float((found.argmax(-1) != wanted).sum()) / count


class Trainer(Run):
    """The run of one encoding."""

    recipe: Recipe
    model: PosencForCausalLM

    def __init__(self, recipe: Recipe, encoding: str, folder: Path, resume: bool = False) -> None:
        self.encoding = encoding
        torch.manual_seed(recipe.seed)
        made: Any = PosencForCausalLM(recipe.model_config(encoding))
        attend_in_blocks(made.train())
        super().__init__(recipe, made, folder, resume)

    def step(self) -> dict[str, float]:
        """One update; returns the row of the loss curve."""
        recipe, progress = self.recipe, self.progress
        batch: Batch = make_batch(recipe, progress.step)
        logits = self.model(batch.ids, use_cache=False).logits
        answer_loss, _ = mean_loss(logits, batch.answers)
        mention_loss, mention_error = mean_loss(logits, batch.mentions)
        name_loss, name_error = mean_loss(logits, batch.names)
        last = (batch.answers != NO_TARGET) & (batch.answers != vocabulary.END)
        answer_error = float((logits.argmax(-1) != batch.answers)[last].float().mean())
        loss = answer_loss + recipe.mention_loss_weight * mention_loss + recipe.name_loss_weight * name_loss
        scale = self.update(loss, batch.num_tokens)
        return {
            "step": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 1),
            "statements": batch.num_statements,
            "loss": round(loss.item(), 4),
            "answer_loss": round(answer_loss.item(), 4),
            "mention_loss": round(mention_loss.item(), 4),
            "name_loss": round(name_loss.item(), 4),
            "answer_error": round(answer_error, 4),
            "mention_error": round(mention_error, 4),
            "name_error": round(name_error, 4),
            "lr_scale": round(scale, 4),
        }

    def watch(self) -> dict[str, float]:
        """Test errors by the number of variables."""
        row: dict[str, float] = {"step": self.progress.step}
        for number in evaluate.NUM_VARIABLES:
            asked = evaluate.programs(number, WATCHED_PROGRAMS, WATCH_SEED)
            row[str(number)] = evaluate.count_errors(self.model, asked) / WATCHED_PROGRAMS
        self.progress.evaluations.append(row)
        return row

    def record(self) -> None:
        """Write the checkpoint, its recipe and loss curve, and the state from which the run can go on."""
        outputs.save_state(self.folder, self.progress, self.model, self.optimizer.state_dict())
        outputs.save_checkpoint(self.folder, self.model, vocabulary.tokenizer())
        outputs.write_loss_curve(self.folder, self.progress, CURVE_COLUMNS)
        written = {
            "encoding": self.encoding,
            "settings": self.recipe.settings(self.encoding),
            "fingerprint": self.recipe.fingerprint(self.encoding),
            **outputs.provenance(),
            "result": {
                "steps": self.progress.step,
                "tokens": self.progress.tokens,
                "minutes": round(self.progress.seconds / 60, 1),
                "weights_sha256": outputs.weights_sha256(self.folder),
                "evaluations": self.progress.evaluations,
            },
        }
        (self.folder / "recipe.yaml").write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")

    def run(self, console: Console, minutes: float | None = None) -> None:
        """Train to the end of the recipe, or until the minutes are over. ``--resume`` goes on from there."""
        self.advance(console, self.recipe.steps, minutes)
        self.record()

    def summary(self, row: dict[str, float]) -> str:
        speed = self.progress.tokens / self.progress.seconds
        return f"loss {row['loss']:.3f} wrong {row['answer_error']:.2f} {speed:,.0f} tokens/s"

    def keep(self, row: dict[str, float], console: Console) -> None:
        """After a step: note a row of the curve, and when due measure the test error and save the state."""
        self.note(row, console)
        step = self.progress.step
        if step % WATCH_EVERY == 0 or step == self.recipe.steps:
            errors = self.watch()
            said = ", ".join(f"{errors[str(n)]:.2f} at {n}" for n in evaluate.NUM_VARIABLES)
            console.print(f"step {step} test error by number of variables: {said}")
        if step % SAVE_EVERY == 0:
            self.record()


def main(
    encoding: Annotated[str, typer.Option(help="A position encoding of the recipe.")],
    out: Annotated[Path, typer.Option(help="Folder of the checkpoint, its recipe and its state.")],
    resume: Annotated[bool, typer.Option(help="Go on from the state in the folder, if there is one.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Stop after this long; --resume goes on.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads. The weights' last bits depend on it.")] = 1,
) -> None:
    """Train one decoder of the counting task by recipe.yaml and write it as a Hugging Face checkpoint."""
    recipe = Recipe.load()
    if encoding not in recipe.encodings:
        raise typer.BadParameter(f"--encoding must be one of {', '.join(recipe.encodings)}, got {encoding}")
    torch.set_num_threads(threads)
    # Whenever weights are written, transformers would draw its own progress bar across ours.
    transformers.utils.logging.disable_progress_bar()
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    Trainer(recipe, encoding, out, resume).run(console, minutes)
    console.print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)

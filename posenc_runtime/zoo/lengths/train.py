"""Train the decoders that are missing: ``python -m posenc_runtime.zoo.lengths.train``. It may be killed at any time."""

from __future__ import annotations

import copy
import itertools
import time
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
from posenc_runtime.zoo.lengths.lessons import Lesson, lesson
from posenc_runtime.zoo.lengths.recipe import SUBJECTS, WEIGHTS, Recipe
from posenc_runtime.zoo.run import Run

SAVE_EVERY = 50
# Weights are trained in float32 and saved in half of the bytes.
SAVED_AS = torch.bfloat16


class Trainer(Run):
    """One run. A state of another recipe in the folder is refused.

    Args:
        encoding: one of the recipe's.

    Raises:
        ValueError: when the folder holds the state of a run with other settings.
    """

    recipe: Recipe
    model: PosencForCausalLM

    def __init__(self, recipe: Recipe, encoding: str, taught: Lesson, folder: Path) -> None:
        self.encoding, self.lesson = encoding, taught
        self.fingerprint = recipe.fingerprint(encoding)
        torch.manual_seed(recipe.seed)
        made: Any = PosencForCausalLM(recipe.model_config(encoding, len(taught.tokenizer), taught.end))
        super().__init__(recipe, made.train(), folder, resume=True)
        if self.progress.step and self.progress.fingerprint != self.fingerprint:
            raise ValueError(
                f"the state in {folder / outputs.STATE_FILE} must be of the settings in recipe.yaml, but these "
                f"have changed since: delete the file to train {encoding} on {recipe.subject} anew"
            )
        self.progress.fingerprint = self.fingerprint

    def step(self) -> dict[str, float]:
        """One update; returns the row of the loss curve."""
        batches = self.lesson.batches(self.progress.step)
        losses = {batch.name: self.loss(batch.ids, batch.targets) for batch in batches}
        self.update(torch.stack(list(losses.values())).sum(), sum(batch.ids.numel() for batch in batches))
        row = {"step": self.progress.step, "tokens": self.progress.tokens, "seconds": round(self.progress.seconds, 1)}
        return row | {f"{name}_loss": round(loss.item(), 4) for name, loss in losses.items()}

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The mean over the tokens that have a target."""
        logits = self.model(ids, use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def keep(self, row: dict[str, float], console: Console) -> None:
        self.note(row, console)
        if self.progress.step % SAVE_EVERY == 0:
            self.save()

    def save(self) -> None:
        """Write the state from which the run can go on."""
        outputs.save_state(self.folder, self.progress, self.model, self.optimizer.state_dict())

    def summary(self, row: dict[str, float]) -> str:
        losses = " ".join(f"{name} {value:.3f}" for name, value in row.items() if name.endswith("_loss"))
        speed = self.progress.tokens / self.progress.seconds
        return f"{self.recipe.subject} {self.encoding}: {losses} {speed:,.0f} tokens/s"

    def run(self, console: Console, minutes: float | None = None) -> bool:
        """Train to the end of the recipe, or until the minutes are over. Returns whether the end was reached."""
        self.advance(console, self.recipe.steps, minutes)
        self.save()
        if self.progress.step < self.recipe.steps:
            return False
        self.export()
        (self.folder / outputs.STATE_FILE).unlink()
        return True

    def export(self) -> None:
        """Write the checkpoint, its loss curve, and last its recipe, which says that all is there."""
        saved: Any = copy.deepcopy(self.model).to(SAVED_AS)
        outputs.save_checkpoint(self.folder, saved, self.lesson.tokenizer)
        losses = [f"{name}_loss" for name in self.lesson.names]
        outputs.write_loss_curve(self.folder, self.progress, ["step", "tokens", "seconds", *losses])
        written = {
            "subject": self.recipe.subject,
            "encoding": self.encoding,
            "settings": self.recipe.settings(self.encoding),
            "fingerprint": self.fingerprint,
            "lesson": self.lesson.facts,
            **outputs.provenance(),
            "result": {
                "steps": self.progress.step,
                "tokens": self.progress.tokens,
                "minutes": round(self.progress.seconds / 60, 1),
                "weights_sha256": outputs.weights_sha256(self.folder),
            },
        }
        (self.folder / "recipe.yaml").write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")


def is_finished(recipe: Recipe, encoding: str, folder: Path) -> bool:
    """Whether the folder holds the checkpoint that the recipe makes, whole."""
    made = folder / "recipe.yaml"
    if not (made.exists() and (folder / "model.safetensors").exists()):
        return False
    said = yaml.safe_load(made.read_text(encoding="utf-8"))
    is_of_recipe = said["fingerprint"] == recipe.fingerprint(encoding)
    return bool(is_of_recipe and said["result"]["weights_sha256"] == outputs.weights_sha256(folder))


def main(
    encoding: Annotated[
        list[str] | None, typer.Option(help="An encoding of the recipe; may be repeated. All when left out.")
    ] = None,
    subject: Annotated[
        list[str] | None, typer.Option(help="text or tasks; may be repeated. Both when left out.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this long in all; the next call goes on.")] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the checkpoints, SUBJECT/ENCODING each.", show_default="the shipped")
    ] = WEIGHTS,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads. The weights' last bits depend on it.")] = 1,
) -> None:
    """Train each decoder of the length zoo that is not there yet, one after another, by recipe.yaml.

    A run that was stopped goes on where it last saved its state, and ends with the weights of one that was not.
    """
    recipes = {name: Recipe.load(name) for name in _chosen("--subject", subject, SUBJECTS)}
    encodings = _chosen("--encoding", encoding, tuple(Recipe.load("text").encodings))
    torch.set_num_threads(threads)
    # Whenever weights are written, transformers would draw its own progress bar across ours.
    transformers.utils.logging.disable_progress_bar()
    console = Console()
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    lessons: dict[str, Lesson] = {}
    for name, kind in itertools.product(encodings, recipes):
        recipe, folder = recipes[kind], out / kind / name
        if is_finished(recipe, name, folder):
            continue
        if deadline is not None and time.monotonic() >= deadline:
            console.print("the minutes are over; the same command goes on", highlight=False)
            return
        folder.mkdir(parents=True, exist_ok=True)
        if kind not in lessons:
            lessons[kind] = lesson(recipe)
        left = None if deadline is None else max(0.0, (deadline - time.monotonic()) / 60)
        if Trainer(recipe, name, lessons[kind], folder).run(console, left):
            console.print(f"wrote {kind}/{name}", highlight=False)
    console.print("nothing is missing", highlight=False)


def _chosen(option: str, names: list[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := [name for name in names or () if name not in known]:
        raise typer.BadParameter(f"{option} must be one of {', '.join(known)}, got {', '.join(unknown)}")
    return tuple(name for name in known if not names or name in names)


if __name__ == "__main__":
    typer.run(main)

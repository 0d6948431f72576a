"""Train the demo model: `python -m posenc_runtime.zoo.train --out DIR`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from posenc_runtime.zoo import corpus, evaluate, outputs, tokenizer
from posenc_runtime.zoo.pace import Pace
from posenc_runtime.zoo.recall import Ids, SequenceMaker
from posenc_runtime.zoo.recipe import Recipe
from posenc_runtime.zoo.run import Run
from posenc_runtime.zoo.scaling import Scaling, factor_for

# These samples choose the weights that are kept, so the final evaluation uses others.
SELECTION_SEED = 5_000_000
# Two scores that differ by less are equal within their sampling error. Then the later weights are kept, which write
# better text.
SCORE_NOISE = 0.02
SELECTION_LENGTHS = (256, 512, 1024, 2048)
SAVE_EVERY = 50


def corpus_tokens(tok: PreTrainedTokenizerFast) -> tuple[Ids, dict[str, Any]]:
    """The corpus as one row of ids with end-of-text between documents, and the facts about it that a recipe records."""
    texts = list(corpus.documents())
    encoded = tok(texts, verbose=False)["input_ids"]
    end = tokenizer.end_of_text_id(tok)
    ids = np.concatenate([np.asarray([*row, end], dtype=np.int64) for row in encoded])
    facts = {"documents": len(texts), "tokens": len(ids), "sha256": corpus.fingerprint(texts)}
    return ids, facts


class Trainer(Run):
    """The run of the demo model, and its data."""

    recipe: Recipe
    model: LlamaForCausalLM

    def __init__(self, recipe: Recipe, folder: Path, resume: bool) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        resumed = resume and outputs.has_state(folder)
        self.tok = tokenizer.load(folder) if resumed else tokenizer.build(folder, recipe.vocab_size)
        ids, self.corpus_facts = corpus_tokens(self.tok)
        self.data = SequenceMaker(self.tok, ids, recipe.seed)
        torch.manual_seed(recipe.seed)
        fresh: Any = LlamaForCausalLM(recipe.model_config(self.data.end))
        super().__init__(recipe, fresh.to(self.device), folder, resume)
        self.pace = Pace(torch.get_num_threads())
        self.tokens_per_second = 0.0  # of the last step
        if not self.progress.schedules or self.progress.schedules[-1]["steps"] != recipe.steps:
            self.progress.schedules.append({"from_step": self.progress.step, "steps": recipe.steps})

    def losses(self, ids: Tensor, recalled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean loss over recalled tokens, mean loss over all others, and the accuracy on recalled tokens."""
        logits = self.model(ids[:, :-1], use_cache=False).logits.flatten(0, 1)
        targets, mask = ids[:, 1:].flatten(), recalled[:, 1:].flatten()
        each = functional.cross_entropy(logits, targets, reduction="none")
        right = (logits.argmax(-1) == targets).float()
        count = mask.sum().clamp(min=1)
        rest = (1 - mask).sum().clamp(min=1)
        return (each * mask).sum() / count, (each * (1 - mask)).sum() / rest, (right * mask).sum() / count

    def step(self) -> dict[str, float]:
        """One update; returns the row of the loss curve."""
        self.pace.prepare()
        before = time.monotonic()
        recipe, progress = self.recipe, self.progress
        length = recipe.length(progress.step)
        size = recipe.tokens_per_step // length
        stage = recipe.stage(progress.step)
        ids, recalled = self.data.batch(progress.step, length, size, stage.mix)
        recall_loss, text_loss, accuracy = self.losses(
            torch.from_numpy(ids).to(self.device), torch.from_numpy(recalled).to(self.device)
        )
        loss = recall_loss + stage.text_loss_weight * text_loss
        scale = self.update(loss, length * size)
        row = {
            "step": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 1),
            "length": length,
            "loss": round(loss.item(), 4),
            "recall_loss": round(recall_loss.item(), 4),
            "text_loss": round(text_loss.item(), 4),
            "recall_accuracy": round(accuracy.item(), 4),
            "lr_scale": round(scale, 4),
        }
        self.tokens_per_second = recipe.tokens_per_step / (time.monotonic() - before)
        self.pace.measured(self.tokens_per_second)
        return row

    def evaluate(self) -> None:
        """Measure accuracy up to the trained length, and beyond it with YaRN. Export the weights unless others won."""
        samples, trained = self.recipe.evaluation_samples, self.recipe.trained_length
        row: dict[str, float] = {"step": self.progress.step}
        for length in SELECTION_LENGTHS:
            ids, starts = evaluate.sample_ids(self.tok, length, samples, SELECTION_SEED)
            scaling = Scaling("yarn", factor_for(length, trained))
            row[str(length)] = evaluate.correct_answers(self.model, ids, starts, scaling) / samples
        score = sum(row[str(length)] for length in SELECTION_LENGTHS) / len(SELECTION_LENGTHS)
        self.progress.evaluations.append(row)
        if score >= self.progress.best_score - SCORE_NOISE:
            self.progress.best_score = max(score, self.progress.best_score)
            self.progress.best_step = self.progress.step
            outputs.save_checkpoint(self.folder, self.model, self.tok)

    def record(self) -> None:
        outputs.save_state(self.folder, self.progress, self.model, self.optimizer.state_dict())
        outputs.write_loss_curve(self.folder, self.progress)
        outputs.write_recipe(self.folder, self.recipe, self.progress, self.corpus_facts)

    def run(self, console: Console, minutes: float | None, until: int | None) -> None:
        """Train to the end of the schedule, to a step, or until the minutes are over. `--resume` goes on from there."""
        end = min(self.recipe.steps, until or self.recipe.steps)
        self.advance(console, end, minutes)
        if not self.evaluated():
            self.evaluate()
        self.record()

    def summary(self, row: dict[str, float]) -> str:
        learned = f"loss {row['loss']:.3f} recall {row['recall_accuracy']:.2f}"
        return f"{learned} {self.tokens_per_second:,.0f} tokens/s {self.latest()}"

    def keep(self, row: dict[str, float], console: Console) -> None:
        """After a step: note a row of the curve, and when due evaluate the model and save the state."""
        self.note(row, console)
        step = self.progress.step
        if step % self.recipe.evaluate_every == 0:
            self.evaluate()
            console.print(f"step {step} pass key accuracy {self.latest()}")
        if step % SAVE_EVERY == 0:
            self.record()

    def evaluated(self) -> bool:
        found = self.progress.evaluations
        return bool(found) and found[-1]["step"] == self.progress.step

    def latest(self) -> str:
        """The last evaluation, accuracy by length."""
        found = self.progress.evaluations[-1:]
        return " ".join(f"{length}:{row[str(length)]:.2f}" for row in found for length in SELECTION_LENGTHS)


def main(
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint, its recipe and the state to resume from.")],
    steps: Annotated[int, typer.Option(help="Length of the schedule in steps.")] = Recipe.steps,
    until: Annotated[int | None, typer.Option(help="Stop after this step; --resume continues.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time; --resume continues.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the data.")] = Recipe.seed,
    resume: Annotated[bool, typer.Option(help="Continue from the state in --out.")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads at most.")] = None,
) -> None:
    """Train the demo model and write it as a Hugging Face checkpoint."""
    if threads:
        torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    trainer = Trainer(replace(Recipe(), steps=steps, seed=seed), out, resume)
    trainer.run(console, minutes, until)
    best = trainer.progress
    console.print(f"kept step {best.best_step}, mean pass key accuracy {best.best_score:.3f}, in {out}")


if __name__ == "__main__":
    typer.run(main)

"""A training run: steps under a schedule of learning rates. A run that was stopped can go on later."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedModel

from posenc_runtime.zoo import outputs
from posenc_runtime.zoo.muon import Optimizer

CURVE_EVERY = 20


class Settings(Protocol):
    """The settings that every recipe has, whatever model it trains."""

    @property
    def steps(self) -> int: ...

    @property
    def matrix_lr(self) -> float: ...

    @property
    def other_lr(self) -> float: ...

    @property
    def weight_decay(self) -> float: ...

    @property
    def gradient_clip(self) -> float: ...

    @property
    def warmup_steps(self) -> int: ...

    @property
    def final_lr_share(self) -> float: ...


def lr_scale(recipe: Settings, step: int) -> float:
    """Linear warm-up, then a cosine down to the final share."""
    warm = min(1.0, (step + 1) / recipe.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / recipe.steps)))
    return warm * (recipe.final_lr_share + (1 - recipe.final_lr_share) * cosine)


class Run(ABC):
    """A model, its optimizer, and how far they have come. A subclass defines a step and what follows each step.

    Args:
        folder: where the run writes its outputs, and the state to resume from.
        resume: whether to go on from the state in the folder, if there is one.
    """

    def __init__(self, recipe: Settings, model: PreTrainedModel, folder: Path, resume: bool) -> None:
        self.recipe, self.model, self.folder = recipe, model, folder
        self.optimizer = Optimizer(model, recipe.matrix_lr, recipe.other_lr, recipe.weight_decay)
        self.progress = outputs.Progress()
        if resume and outputs.has_state(folder):
            self.progress, weights, state = outputs.load_state(folder)
            self.model.load_state_dict(weights)
            self.optimizer.load_state_dict(state)

    @abstractmethod
    def step(self) -> dict[str, float]:
        """One update; returns the row of the loss curve."""

    @abstractmethod
    def keep(self, row: dict[str, float], console: Console) -> None:
        """Called after each step: write, print or evaluate what is due."""

    @abstractmethod
    def summary(self, row: dict[str, float]) -> str:
        """The text beside the progress bar after a step."""

    def update(self, loss: Tensor, num_tokens: int) -> float:
        """Change the weights by the gradient of a loss. Returns the scale of the learning rates."""
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.gradient_clip)
        scale = lr_scale(self.recipe, self.progress.step)
        self.optimizer.step(scale)
        self.optimizer.zero_grad()
        self.progress.step += 1
        self.progress.tokens += num_tokens
        return scale

    def note(self, row: dict[str, float], console: Console) -> None:
        """Add every ``CURVE_EVERY``-th row to the loss curve, and print it if the output is a log without a bar."""
        if self.progress.step % CURVE_EVERY == 0:
            self.progress.curve.append(row)
            if not console.is_terminal:
                console.print(" ".join(f"{key} {value:g}" for key, value in row.items()), soft_wrap=True)

    def advance(self, console: Console, end: int, minutes: float | None) -> None:
        """Train up to step ``end``, or until ``minutes`` are over."""
        started = time.monotonic() - self.progress.seconds
        deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, *times, console=console) as bar:
            task = bar.add_task("starting", total=self.recipe.steps, completed=self.progress.step)
            while self.progress.step < end and time.monotonic() < deadline:
                row = self.step()
                self.progress.seconds = time.monotonic() - started
                bar.update(task, completed=self.progress.step, description=self.summary(row))
                self.keep(row, console)

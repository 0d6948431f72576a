"""What a run learns from: batches of text or of tasks, which depend only on the recipe and the step."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from posenc_runtime.zoo import corpus, tokenizer
from posenc_runtime.zoo.lengths import problems, vocabulary
from posenc_runtime.zoo.lengths.recipe import Recipe

# The target that torch's cross entropy ignores.
NO_TARGET = -100


@dataclass(frozen=True)
class Batch:
    """Sequences of one length.

    Attributes:
        name: what the loss of these sequences is called.
        ids: int64 ``[size, length]``.
        targets: int64, in ids' shape: the token to predict at each token, or ``NO_TARGET``.
    """

    name: str
    ids: Tensor
    targets: Tensor


class Lesson(Protocol):
    """A source of batches, with the tokenizer that its tokens are of.

    Attributes:
        names: those of the batches of a step.
        end: the token that ends a text and stands before one.
        facts: what a recipe records about the data.
    """

    names: tuple[str, ...]
    tokenizer: PreTrainedTokenizerFast
    end: int
    facts: dict[str, Any]

    def batches(self, step: int) -> tuple[Batch, ...]: ...


class TextLesson:
    """Windows of ``trained_length`` tokens from the standard library's text, without the held-out files.

    Attributes:
        facts: how much text there is, and its fingerprint.
    """

    names: tuple[str, ...] = ("text",)

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.tokenizer = vocabulary.of_text()
        self.end = tokenizer.end_of_text_id(self.tokenizer)
        texts = list(corpus.documents(without=recipe.held_out))
        encoded = self.tokenizer(texts, verbose=False)["input_ids"]
        self.ids: NDArray[np.int64] = np.concatenate([np.asarray([*row, self.end], dtype=np.int64) for row in encoded])
        self.facts = {"documents": len(texts), "tokens": len(self.ids), "sha256": corpus.fingerprint(texts)}

    def batches(self, step: int) -> tuple[Batch, ...]:
        rng = random.Random(f"{self.recipe.seed}:text:{step}")
        length = self.recipe.trained_length
        starts = [rng.randrange(len(self.ids) - length) for _ in range(self.recipe.tokens_per_step["text"] // length)]
        rows = torch.from_numpy(np.stack([self.ids[start : start + length + 1] for start in starts]))
        return (Batch("text", rows[:, :-1], rows[:, 1:]),)


class TasksLesson:
    """A batch of each task. The problems of a batch have one length, which is drawn for the step."""

    names: tuple[str, ...] = tuple(problems.TASKS)

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.tokenizer = vocabulary.of_tasks()
        self.end = vocabulary.END
        self.facts: dict[str, Any] = {"tasks": list(problems.TASKS)}

    def batches(self, step: int) -> tuple[Batch, ...]:
        return tuple(self._batch(task, step) for task in problems.TASKS)

    def _batch(self, task: str, step: int) -> Batch:
        rng = random.Random(f"{self.recipe.seed}:{task}:{step}")
        length = rng.randint(1, self.recipe.longest[task])
        longest = problems.TASKS[task].longest(length) + 2  # a start, the problem, its answer, and the end
        size = max(1, self.recipe.tokens_per_step[task] // longest)
        drawn = [problems.TASKS[task].draw(length, rng) for _ in range(size)]
        rows = torch.full((size, longest), self.end)
        targets = torch.full((size, longest), NO_TARGET)
        for row, target, problem in zip(rows, targets, drawn, strict=True):
            ids = torch.tensor(vocabulary.ids_of(problem.prompt) + vocabulary.ids_of(problem.answer)[1:] + [self.end])
            asked = 1 + len(problem.prompt)
            row[: len(ids)] = ids
            target[asked - 1 : len(ids) - 1] = ids[asked:]
        return Batch(task, rows, targets)


def held_out_texts(recipe: Recipe) -> dict[str, str]:
    """The held-out files of the standard library, by their paths in it."""
    return {file: corpus.read_text(corpus.stdlib() / file) for file in recipe.held_out}


def lesson(recipe: Recipe) -> Lesson:
    """The lesson of the recipe's subject."""
    return TextLesson(recipe) if recipe.subject == "text" else TasksLesson(recipe)

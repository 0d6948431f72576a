"""Batches to train on: programs of about one length, with targets at the words that name or change a variable."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc_runtime.zoo.counting.recipe import Recipe
from posenc_runtime.zoo.counting.task import FEWEST_STATEMENTS, INCREMENT, SET, Program, attempt
from posenc_runtime.zoo.counting.vocabulary import END, IDS, ids_of

# The word before each of these is the variable that it changes.
OPERATORS = ("=", "++;")
# The target that torch's cross entropy ignores.
NO_TARGET = -100


@dataclass(frozen=True)
class Batch:
    """A step's programs as ids, and three kinds of targets for them.

    Attributes:
        ids: int64 ``[size, length]``, padded at the end.
        answers: int64, in ids' shape. The target at the last word of a prompt is the answer, at the answer the end of
            the text.
        mentions: int64, in ids' shape. The target at each earlier word that names a variable is the variable's value
            there. The text itself never shows this value.
        names: int64, in ids' shape. The target at each word that sets or increments is the variable before it.
        num_statements: statements that were drawn for each program.
    """

    ids: Tensor
    answers: Tensor
    mentions: Tensor
    names: Tensor
    num_statements: int

    @property
    def num_tokens(self) -> int:
        return self.ids.numel()


def make_batch(recipe: Recipe, step: int) -> Batch:
    """The batch of a step. It depends only on the recipe and the step."""
    rng = random.Random(f"{recipe.seed}:batch:{step}")
    stage = recipe.stage(step)
    num_statements = rng.randint(FEWEST_STATEMENTS, stage.most_statements)
    # To set takes four words, to increment two, to do nothing one. Each program also has a start, a question of two
    # words and an answer.
    per_statement = (4 * SET + 2 * INCREMENT + stage.pass_weight) / (SET + INCREMENT + stage.pass_weight)
    size = min(recipe.most_programs, round(recipe.tokens_per_step / (num_statements * per_statement + 4)))
    programs: list[Program] = []
    while len(programs) < size:
        drawn = attempt(rng.choice(recipe.num_variables), num_statements, rng, stage.pass_weight)
        if drawn is not None:
            programs.append(drawn)
    length = max(len(program.words) for program in programs) + 2
    ids = torch.full((size, length), END)
    answers = torch.full((size, length), NO_TARGET)
    mentions = torch.full((size, length), NO_TARGET)
    names = torch.full((size, length), NO_TARGET)
    for row, program in enumerate(programs):
        end = len(program.words) + 1
        answer = IDS[program.answer]
        ids[row, :end] = torch.tensor(ids_of(program))
        ids[row, end] = answer
        answers[row, end - 1], answers[row, end] = answer, END
        for place, value in enumerate(program.values[:-1], start=1):
            if value is not None:
                mentions[row, place] = IDS[str(value)]
        for place, word in enumerate(program.words, start=1):
            if word in OPERATORS:
                names[row, place] = ids[row, place - 1]
    return Batch(ids, answers, mentions, names, num_statements)

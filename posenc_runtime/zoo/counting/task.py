"""The counting task of CoPE's paper (Golovneva et al. 2024, arXiv:2405.18719): programs that set and increment.

A program is a row of statements: ``a = 0 ;`` sets a variable, ``a ++;`` increments it, ``pass;`` does nothing. Then
``print a`` asks for a variable's value. To answer, a model has to count the increments of that variable since it was
last set, among statements that do not matter. Frequencies and limits are those of the authors' generator
(facebookresearch/RAM, projects/cope). The programs differ, because random numbers are drawn in another way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

NAMES = ("a", "b", "c", "d", "e")
LARGEST = 10
# How often each kind of statement is drawn, relative to the others.
SET, PASS, INCREMENT = 1, 50, 7
FEWEST_STATEMENTS, MOST_STATEMENTS = 3, 512
# Tokens of a start, a text and its answer. About one program in some thousands is longer; it is drawn again.
LONGEST = 640


@dataclass(frozen=True)
class Program:
    """A program with its question.

    Attributes:
        words: the words of the text, with the two of the question.
        values: for each word that names a variable, the variable's value before the statement; None for other words
            and for variables that are not set yet. The last value is the answer.
        num_statements: number of statements without the question.
    """

    words: tuple[str, ...]
    values: tuple[int | None, ...]
    num_statements: int

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def answer(self) -> str:
        return str(self.values[-1])


def make_program(num_variables: int, seed: int, most_statements: int = MOST_STATEMENTS) -> Program:
    """A program with a random number of statements. The same arguments always give the same program."""
    rng = random.Random(f"{num_variables} variables:{most_statements}:{seed}")
    while True:
        drawn = attempt(num_variables, rng.randint(FEWEST_STATEMENTS, most_statements), rng)
        if drawn is not None:
            return drawn


def attempt(num_variables: int, num_statements: int, rng: random.Random, pass_weight: float = PASS) -> Program | None:
    """One program; None if it sets no variable, so that there is nothing to ask, or if it is too long.

    Args:
        pass_weight: how often a statement does nothing, relative to the other kinds; the task's own weight is ``PASS``.
    """
    state: dict[str, int] = {}
    words: list[str] = []
    values: list[int | None] = []
    for _ in range(num_statements):
        name, kind = statement(num_variables, state, rng, pass_weight)
        if kind == "pass":
            words.append("pass;")
            values.append(None)
            continue
        before = state.get(name)
        if kind == "set":
            words += (name, "=", "0", ";")
            values += (before, None, None, None)
            state[name] = 0
        else:
            words += (name, "++;")
            values += (before, None)
            state[name] += 1
    if not state:
        return None
    asked = rng.choice(list(state))
    words += ("print", asked)
    values += (None, state[asked])
    # Two more tokens: the start before the text, and the answer after it.
    return Program(tuple(words), tuple(values), num_statements) if len(words) + 2 <= LONGEST else None


def statement(num_variables: int, state: dict[str, int], rng: random.Random, pass_weight: float) -> tuple[str, str]:
    """A variable and what happens to it. If the drawn statement is an impossible increment, another one is drawn."""
    while True:
        kind = rng.choices(("set", "pass", "increment"), (SET, pass_weight, INCREMENT))[0]
        if kind == "pass":
            return "", kind
        if kind == "set":
            return rng.choice(NAMES[:num_variables]), kind
        if state:
            name = rng.choice(list(state))
            if state[name] < LARGEST:
                return name, kind


def is_correct(program: Program, completion: str) -> bool:
    """Whether the first word of the completion is the answer."""
    return completion.split()[:1] == [program.answer]

"""The tasks: copying letters and adding two numbers, as in Kazemnejad et al. 2023 (arXiv:2305.19466), table 1.

A problem is ``x k q =`` or ``1 1 + 0 1 =``, and its answer is ``x k q`` or ``1 0 1``. Numbers are binary and begin with
their lowest bit, unlike in the paper: a small decoder learns to compute such sums in minutes, bit by bit.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

LETTERS = tuple(string.ascii_lowercase)
BITS = ("0", "1")
EQUALS, PLUS = "=", "+"


@dataclass(frozen=True)
class Problem:
    """The words of a problem and of its answer.

    Attributes:
        length: letters to copy, or bits of each of the two numbers.
    """

    prompt: tuple[str, ...]
    answer: tuple[str, ...]
    length: int

    @property
    def text(self) -> str:
        return " ".join(self.prompt)

    def is_solved_by(self, completion: str) -> bool:
        """Whether the completion is the answer, and nothing else."""
        return tuple(completion.split()) == self.answer


def copying(length: int, rng: random.Random) -> Problem:
    letters = tuple(rng.choices(LETTERS, k=length))
    return Problem((*letters, EQUALS), letters, length)


def addition(length: int, rng: random.Random) -> Problem:
    """Two numbers of ``length`` bits. Their highest bit is 1, but for the number 0."""
    first, second = (rng.randrange(2 ** (length - 1) if length > 1 else 0, 2**length) for _ in range(2))
    return Problem((*_spelt(first), PLUS, *_spelt(second), EQUALS), _spelt(first + second), length)


@dataclass(frozen=True)
class Task:
    """A kind of problem.

    Attributes:
        unit: what a problem's length counts.
        draw: a problem of a length.
        longest: the most words that a problem of a length and its answer have.
    """

    unit: str
    draw: Callable[[int, random.Random], Problem]
    longest: Callable[[int], int]


TASKS = {
    "copying": Task("letters", copying, lambda length: 2 * length + 1),
    "addition": Task("bits", addition, lambda length: 3 * length + 3),
}


def problems(task: str, length: int, count: int, seed: int) -> list[Problem]:
    """Problems of one length. The same arguments always give the same problems."""
    rng = random.Random(f"{task}:{length}:{seed}")
    return [TASKS[task].draw(length, rng) for _ in range(count)]


def _spelt(number: int) -> tuple[str, ...]:
    return tuple(reversed(f"{number:b}"))

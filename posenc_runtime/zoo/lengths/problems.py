"""The tasks: copying letters and adding two numbers, as in Kazemnejad et al. 2023 (arXiv:2305.19466), table 1.

A problem is ``x k q =`` or ``5 1 + 8 2 =``, and its answer is ``x k q`` or ``3 4``. Numbers begin with their lowest
digit, unlike in the paper: a small decoder can then compute the sum digit by digit.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

LETTERS = tuple(string.ascii_lowercase)
DIGITS = tuple(string.digits)
EQUALS, PLUS = "=", "+"


@dataclass(frozen=True)
class Problem:
    """The words of a problem and of its answer.

    Attributes:
        length: letters to copy, or digits of each of the two numbers.
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
    """Two numbers of ``length`` digits. Their highest digit is not 0, so that every number has one spelling."""
    first, second = (rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length) for _ in range(2))
    return Problem((*_spelt(first), PLUS, *_spelt(second), EQUALS), _spelt(first + second), length)


TASKS: dict[str, Callable[[int, random.Random], Problem]] = {"copying": copying, "addition": addition}


def problems(task: str, length: int, count: int, seed: int) -> list[Problem]:
    """Problems of one length. The same arguments always give the same problems."""
    rng = random.Random(f"{task}:{length}:{seed}")
    return [TASKS[task](length, rng) for _ in range(count)]


def _spelt(number: int) -> tuple[str, ...]:
    return tuple(reversed(str(number)))

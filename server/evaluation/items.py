"""What a task measures, piece by piece, and what came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from server.evaluation.asking import Asker
from server.evaluation.result import Report

Record = Mapping[str, Any]
Results = Mapping[str, Mapping[str, Record]]  # by target, then by item

DECODED_COST = 20  # a decoded token takes as long as so many of a prompt, or so


@dataclasses.dataclass(frozen=True)
class Item:
    """One sample; each target gets the same ones.

    Attributes:
        id: names it in the journal.
        seed: that it was drawn with.
        cost: tokens that a server has to compute for it, for the time that is left.
        given: what the task measures it with.
    """

    id: str
    seed: int
    cost: int
    given: Any


class Task(Protocol):
    """One kind of evaluation.

    Attributes:
        options: what a journal must have in common with it, to be continued.
        longest: tokens of its longest request, prompt and answer together.
    """

    name: str
    options: dict[str, Any]
    longest: int

    def items(self) -> list[Item]:
        """What is measured, in order."""
        ...

    async def measure(self, asker: Asker, item: Item) -> Record:
        """Measure one item; the record is JSON."""
        ...

    def report(self, results: Results) -> Report:
        """Tables and pictures of what was measured so far."""
        ...

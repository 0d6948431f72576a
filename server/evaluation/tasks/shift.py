"""``posenc eval shift``: the same text at other positions, which a relative encoding reads alike."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

from server.evaluation import averages, texts
from server.evaluation.asking import Asker
from server.evaluation.averages import Values
from server.evaluation.items import Item, Record, Results
from server.evaluation.result import Picture, Report
from server.evaluation.tokens import Tokens


class ShiftTask:
    """Log probabilities of the same tokens after paddings of several lengths.

    A padding is one token again and again, so that it says nothing about the text. Between it and the tokens that count
    are the first tokens of the piece, so that what stands right before them is the same at every position, too.

    Args:
        shifts: tokens of padding, ascending; the first is what the others are compared with.
        length: tokens of a piece.
        skipped: of these, the first ones, which do not count.
    """

    name = "shift"

    def __init__(
        self, text: str, tokens: Tokens, *, shifts: Sequence[int], length: int, skipped: int, samples: int, seed: int
    ) -> None:
        self._ids, self._tokens = tokens.ids(text), tokens
        self._shifts, self._length, self._skipped = sorted(set(shifts)), length, skipped
        self._samples, self._seed = samples, seed
        self.longest = self._shifts[-1] + len(tokens.start) + length + 1
        self.options: dict[str, Any] = {
            "text": texts.fingerprint(text),
            "tokenizer": tokens.fingerprint(),
            "shifts": self._shifts,
            "length": length,
            "skipped": skipped,
            "samples": samples,
            "seed": seed,
        }

    def items(self) -> list[Item]:
        """A piece at all positions, then the next one."""
        pieces = texts.pieces(self._ids, self._length, self._samples, self._seed)
        return [
            Item(
                f"{shift}/{number}",
                self._seed,
                shift + self._length,
                [*self._tokens.start, *self._padding(number, shift), *piece],
            )
            for number, piece in enumerate(pieces)
            for shift in self._shifts
        ]

    def _padding(self, number: int, shift: int) -> list[int]:
        """One token of the text, another one for each piece."""
        return [random.Random(f"{self._seed}/{number}").choice(self._ids)] * shift

    async def measure(self, asker: Asker, item: Item) -> Record:
        """The mean log probability of the tokens that count."""
        logprobs = await asker.prompt_logprobs(item.given)
        return {"logprob": round(statistics.fmean(logprobs[-(self._length - self._skipped) :]), 6)}

    def report(self, results: Results) -> Report:
        """A row for each shift: the loss against the first one, piece by piece."""
        targets, first = list(results), self._shifts[0]
        by_shift = {shift: self._at(results, shift) for shift in self._shifts}
        moved = {shift: _apart(by_shift[shift], by_shift[first]) for shift in self._shifts[1:]}
        rows = [(f"{shift:,}", averages.estimates(values)) for shift, values in moved.items()]
        base = [(f"{first:,}", averages.estimates(by_shift[first]))]
        counted = self._length - self._skipped
        title = f"Mean log probability of the last {counted:,} of {self._length:,} tokens, after {first:,} of padding:"
        note = "Natural logarithm; 95 % t intervals over pieces. Below 0 the text is read worse than there."
        tables = [
            averages.table(title, "padding", base, targets, digits=4),
            averages.table(
                "Difference after longer padding, piece by piece:",
                "padding",
                rows,
                targets,
                digits=4,
                sign=True,
                note=note,
            ),
        ]
        found = {
            "logprob": [_row(shift, values) for shift, values in by_shift.items()],
            "difference": [_row(shift, values) for shift, values in moved.items()],
        }
        return Report(found, tables, [_picture(moved, targets)] if moved else [])

    def _at(self, results: Results, shift: int) -> dict[str, dict[str, float]]:
        prefix = f"{shift}/"
        return {
            target: {
                item.removeprefix(prefix): record["logprob"]
                for item, record in records.items()
                if item.startswith(prefix)
            }
            for target, records in results.items()
        }


def _apart(values: Values, base: Values) -> dict[str, dict[str, float]]:
    return {
        target: {piece: value - base[target][piece] for piece, value in each.items() if piece in base[target]}
        for target, each in values.items()
    }


def _row(shift: int, values: Values) -> dict[str, Any]:
    return {"padding": shift} | {target: each.as_json() for target, each in averages.estimates(values).items()}


def _picture(moved: dict[int, dict[str, dict[str, float]]], targets: Sequence[str]) -> Picture:
    title, x_label = "The same text after longer padding", "padding before the text, tokens"
    return Picture(
        "shift", title, lambda: averages.draw(title, moved, targets, x_label, "change of mean log probability")
    )

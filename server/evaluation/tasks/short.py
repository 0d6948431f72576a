"""``posenc eval short``: what requests within the trained length lose, though they need no scale."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from server.evaluation import averages, texts
from server.evaluation.asking import Asker
from server.evaluation.averages import Values
from server.evaluation.intervals import Estimate, wilson
from server.evaluation.items import DECODED_COST, Item, Record, Results
from server.evaluation.result import Picture, Report
from server.evaluation.tokens import Tokens
from server.printing.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ShortTask:
    """Log probabilities of short pieces, and greedy answers that differ from those of the first target.

    Args:
        length: of a piece, tokens; the prompt is its first half.
        answer: tokens of a greedy answer.
    """

    name = "short"

    def __init__(self, text: str, tokens: Tokens, *, length: int, answer: int, samples: int, seed: int) -> None:
        self._ids, self._tokens = tokens.ids(text), tokens
        self._length, self._answer, self._samples, self._seed = length, answer, samples, seed
        self.longest = max(length + 1, length // 2 + answer)
        self.options: dict[str, Any] = {
            "text": texts.fingerprint(text),
            "tokenizer": tokens.fingerprint(),
            "length": length,
            "answer": answer,
            "samples": samples,
            "seed": seed,
        }

    def items(self) -> list[Item]:
        """A piece after the other."""
        start = self._tokens.start
        cost = self._length + self._length // 2 + DECODED_COST * self._answer
        pieces = texts.pieces(self._ids, self._length - len(start), self._samples, self._seed)
        return [Item(str(number), self._seed, cost, [*start, *piece]) for number, piece in enumerate(pieces)]

    async def measure(self, asker: Asker, item: Item) -> Record:
        """The mean log probability of a piece, and how its first half goes on."""
        logprobs = await asker.prompt_logprobs(item.given)
        answer = await asker.answer(item.given[: self._length // 2], self._answer) if self._answer else None
        return {
            "logprob": round(statistics.fmean(logprobs), 6),
            "answer": answer and answer.text,
            "scale": answer and answer.scale,
        }

    def report(self, results: Results) -> Report:
        """A row for each target."""
        targets = list(results)
        values: Values = {
            target: {item: record["logprob"] for item, record in records.items()} for target, records in results.items()
        }
        reference = targets[0]
        means, apart = averages.estimates(values), averages.differences(values, reference)
        changed = {target: each for target in targets[1:] if (each := self._changed(results, reference, target))}
        rows = [
            (
                target,
                means[target].plus_minus(".4f") if target in means else "-",
                apart[target].plus_minus("+.4f") if target in apart else "-",
                f"{math.expm1(-apart[target].value):+z.1%}" if target in apart else "-",
                f"{changed[target]:.2f}" if target in changed else "-",
            )
            for target in targets
        ]
        headings = (
            "target", "mean log probability", f"difference from {reference}", "change of perplexity", "answers changed",
        )  # fmt: skip
        title = f"Texts of {self._length:,} tokens, and greedy answers of {self._answer:,} tokens:"
        note = (
            "Mean log probability of a token (natural logarithm) and its difference, piece by piece: 95 % t intervals "
            "over pieces. Answers changed: the share of answers that "
            f"differ from {reference}'s in any character, with Wilson's 95 % interval."
        )
        scales = {target: _scales(list(records.values())) for target, records in results.items()}
        found = {
            "logprob": {target: each.as_json() for target, each in means.items()},
            "difference": {target: each.as_json() for target, each in apart.items()},
            "changed": {target: each.as_json() for target, each in changed.items()},
            "scales": scales,
        }
        pictures = [_picture(reference, apart)] if apart else []
        remarks = [f"{target}: answers ran at scale {', '.join(each)}." for target, each in scales.items() if each]
        return Report(found, [Table(title, headings, rows, note)], pictures, remarks)

    def _changed(self, results: Results, reference: str, target: str) -> Estimate | None:
        """The share of answers that differ."""
        theirs, ours = results[reference], results[target]
        shared = [item for item in ours if item in theirs and ours[item]["answer"] is not None]
        if not shared:
            return None
        return wilson(sum(ours[item]["answer"] != theirs[item]["answer"] for item in shared), len(shared))


def _scales(records: Sequence[Record]) -> list[str]:
    return [f"{scale:g}" for scale in sorted({each["scale"] for each in records if each["scale"] is not None})]


def _picture(reference: str, apart: dict[str, Estimate]) -> Picture:
    title = f"Log probability of short text, difference from {reference}"

    def draw() -> Figure:
        from server.plots import style

        drawn, (axes,) = style.figure(title, height=1.6 + 0.45 * len(apart))
        for number, each in enumerate(apart.values()):
            colour = style.look(number)["color"]
            axes.errorbar(
                each.value, number, xerr=None if math.isnan(each.half) else each.half, fmt="o", color=colour, capsize=4
            )
        axes.axvline(0, color=style.FAINT, linewidth=1)
        axes.set_yticks(range(len(apart)), list(apart))
        axes.set_ylim(len(apart) - 0.5, -0.5)
        axes.set_xlabel("mean log probability of a token; left of 0 is worse")
        return drawn

    return Picture("short", title, draw)

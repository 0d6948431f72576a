"""``posenc eval order``: a value is given twice, and the later one counts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from server.evaluation import EvaluationRefused, averages, texts
from server.evaluation.asking import Asker
from server.evaluation.intervals import wilson
from server.evaluation.items import DECODED_COST, Item, Record, Results
from server.evaluation.result import Picture, Report
from server.evaluation.tokens import Tokens
from server.printing.tables import Table

_UPDATE = "\n\nUpdate: the door code is {}.\n\n"
_QUESTION = "\n\nQuestion: What is the latest door code?\nAnswer: the door code is"
# Where the two updates may stand, in parts of the text: both far from the question, and far from each other.
_EARLIER, _LATER = (0.05, 0.35), (0.45, 0.65)
_VALUES = ("earlier", "later")


class OrderTask:
    """How much likelier a model takes the later of two values for the latest.

    Only the order of two equal sentences tells the values apart, far before the question.

    Args:
        lengths: of prompt and value together, tokens.
    """

    name = "order"

    def __init__(self, text: str, tokens: Tokens, *, lengths: Sequence[int], samples: int, seed: int) -> None:
        self._ids, self._tokens = tokens.ids(text), tokens
        self._lengths, self._samples, self._seed = sorted(set(lengths)), samples, seed
        self.longest = self._lengths[-1]
        self.options: dict[str, Any] = {
            "text": texts.fingerprint(text),
            "tokenizer": tokens.fingerprint(),
            "lengths": self._lengths,
            "samples": samples,
            "seed": seed,
        }

    def items(self) -> list[Item]:
        """A sample of each length, then the next one."""
        by_length = {length: texts.pieces(self._ids, length, self._samples, self._seed) for length in self._lengths}
        items = []
        for number in range(self._samples):
            for length in self._lengths:
                given = self._given(by_length[length][number], f"{self._seed}/{length}/{number}")
                cost = length + 2 * DECODED_COST * len(given["later"])
                items.append(Item(f"{length}/{number}", self._seed, cost, given))
        return items

    def _given(self, piece: list[int], seed: str) -> dict[str, list[int]]:
        """The prompt, and the tokens of both values."""
        draw, ids = random.Random(seed), self._tokens.ids
        earlier, later = (str(number) for number in draw.sample(range(10_000, 100_000), 2))
        updates, question = [ids(_UPDATE.format(value)) for value in (earlier, later)], ids(_QUESTION)
        values = [ids(f" {value}") for value in (earlier, later)]
        added = len(self._tokens.start) + sum(map(len, updates)) + len(question) + max(map(len, values))
        if 2 * added > len(piece):
            raise EvaluationRefused(
                f"--length: must be at least {2 * added}, twice the tokens of both sentences and the question, got "
                f"{len(piece)}"
            )
        text = piece[: len(piece) - added]
        first, second = (int(draw.uniform(*place) * len(text)) for place in (_EARLIER, _LATER))
        prompt = [*self._tokens.start, *text[:first], *updates[0], *text[first:second], *updates[1], *text[second:]]
        return {"prompt": prompt + question, "earlier": values[0], "later": values[1]}

    async def measure(self, asker: Asker, item: Item) -> Record:
        """The log probability of each value as the answer."""
        return {name: round(await _logprob(asker, item.given["prompt"], item.given[name]), 6) for name in _VALUES}

    def report(self, results: Results) -> Report:
        """Tables of the preference, of how often it is above 0, and of how likely the later value is."""
        targets, first = list(results), next(iter(results), "")
        prefers = {length: _by_sample(results, length, _preference) for length in self._lengths}
        knows = {length: _by_sample(results, length, lambda record: record["later"]) for length in self._lengths}
        estimates = {length: averages.estimates(each) for length, each in prefers.items()}
        apart = {length: averages.differences(each, first) for length, each in prefers.items()}
        shares = {
            length: {
                name: wilson(sum(one > 0 for one in each.values()), len(each)) for name, each in by.items() if each
            }
            for length, by in prefers.items()
        }
        note = f"Natural logarithm; 95 % t intervals over {self._samples} samples."
        tables = [
            averages.table(
                "How much likelier the later value is than the earlier one, as the latest:",
                "tokens", _rows(estimates), targets, digits=2, sign=True, note=note,
            ),
            Table(
                "Share of samples in which the later value is likelier:",
                ("tokens", *targets),
                [
                    (name, *(f"{each[target]:.2f}" if target in each else "-" for target in targets))
                    for name, each in _rows(shares)
                ],
                "95 % intervals by Wilson.",
            ),
            averages.table(
                "Log probability of the later value:",
                "tokens", _rows({length: averages.estimates(each) for length, each in knows.items()}), targets,
                digits=2, sign=True,
            ),
        ]  # fmt: skip
        if any(apart.values()):
            tables.append(
                averages.table(
                    f"How much likelier it is, difference from {first}, sample by sample:",
                    "tokens", _rows(apart), targets[1:], digits=2, sign=True,
                )
            )  # fmt: skip
        found = {
            name: [
                {"length": length} | {target: one.as_json() for target, one in each.items()}
                for length, each in by_length.items()
            ]
            for name, by_length in (("preference", estimates), ("share", shares), ("difference", apart))
        }
        return Report(found, tables, [_picture(prefers, targets)])


async def _logprob(asker: Asker, prompt: Sequence[int], value: Sequence[int]) -> float:
    """Of a value after a prompt. A server that can be told what to say reads the prompt once for both values."""
    forced = await asker.forced_logprobs(prompt, value)
    if forced is not None:
        return sum(forced.logprobs)
    return sum((await asker.prompt_logprobs([*prompt, *value]))[-len(value) :])


def _preference(record: Record) -> float:
    return float(record["later"] - record["earlier"])


def _by_sample(results: Results, length: int, value: Any) -> dict[str, dict[str, float]]:
    return {
        target: {item: value(record) for item, record in records.items() if item.startswith(f"{length}/")}
        for target, records in results.items()
    }


def _rows(by_length: Mapping[int, Any]) -> list[tuple[str, Any]]:
    return [(f"{length:,}", each) for length, each in by_length.items()]


def _picture(prefers: Mapping[int, Mapping[str, Mapping[str, float]]], targets: Sequence[str]) -> Picture:
    title, x_label = "The later of two values, as the latest", "tokens of prompt and value"
    y_label = "log probability of the later value less that of the earlier one"
    return Picture("order", title, lambda: averages.draw(title, prefers, targets, x_label, y_label))

"""``posenc eval ruler``: RULER's tasks by length, the effective length, and needles by depth."""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from server.evaluation import averages
from server.evaluation.asking import Asker
from server.evaluation.intervals import Estimate, wilson
from server.evaluation.items import DECODED_COST, Item, Record, Results
from server.evaluation.result import Picture, Report
from server.evaluation.ruler import samples
from server.evaluation.ruler.samples import Sample
from server.evaluation.tokens import Tokens
from server.printing.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DEPTHS = 5  # rows of the heat map


class RulerTask:
    """RULER.

    Args:
        folder: where samples are kept.
        is_chat: whether prompts go through the model's chat template.
        threshold: the mean score from which on a length counts as effective.
    """

    name = "ruler"

    def __init__(
        self, folder: pathlib.Path, tokens: Tokens, *, tasks: Sequence[str], lengths: Sequence[int], num_samples: int,
        seed: int, is_chat: bool, threshold: float,
    ) -> None:  # fmt: skip
        self._tasks, self._lengths, self._is_chat, self._threshold = list(tasks), sorted(lengths), is_chat, threshold
        self._tokens, self._folder, self._num_samples, self._seed = tokens, folder, num_samples, seed
        # A chat template and a token before the text come on top of what RULER counts.
        self.longest = max(self._lengths)
        self.options: dict[str, Any] = {
            "ruler": samples.version(),
            "tokenizer": tokens.fingerprint(),
            "tasks": self._tasks,
            "lengths": self._lengths,
            "samples": num_samples,
            "seed": seed,
            "chat": is_chat,
        }

    def items(self) -> list[Item]:
        """Sample by sample: the first of every task and length, then the second, so that a part tells of all."""
        samples.make(self._folder, self._tasks, self._lengths, self._num_samples, self._seed, self._tokens.place)
        found = []
        for length in self._lengths:
            for task in self._tasks:
                for each in samples.read(self._folder, task, length):
                    cost = each.length + DECODED_COST * each.max_tokens
                    found.append((each.index, Item(f"{task}/{length}/{each.index}", self._seed, cost, each)))
        return [item for _, item in sorted(found, key=lambda pair: pair[0])]

    async def measure(self, asker: Asker, item: Item) -> Record:
        """The answer and its score."""
        sample: Sample = item.given
        answer = await asker.answer(sample.prompt, sample.max_tokens, is_chat=self._is_chat)
        scored = samples.score(sample.task, answer.text, sample.references)
        return {"score": scored, "depth": sample.depth, "answer": answer.text, "scale": answer.scale}

    def report(self, results: Results) -> Report:
        """A table for each target, one of the means, one of the differences from the first target, and pictures."""
        cells = {target: self._cells(records) for target, records in results.items()}
        means = {target: self._means(each) for target, each in cells.items()}
        tables = [self._mean_table(means)]
        for target, each in cells.items():
            rows = [
                (task, *(f"{each[task, length]:.2f}" if (task, length) in each else "-" for length in self._lengths))
                for task in self._tasks
            ]
            tables.append(Table(f"RULER on {target}, score by task:", ("task", *self._headings()), rows))
        apart = {
            length: averages.differences(self._scores(results, length), next(iter(results), ""))
            for length in self._lengths
        }
        if any(apart.values()):
            tables.append(self._apart_table(apart, *results))
        found = {
            "scores": {
                target: [
                    {"task": task, "length": length, **estimate.as_json()} for (task, length), estimate in each.items()
                ]
                for target, each in cells.items()
            },
            "means": {target: {str(length): value for length, value in each.items()} for target, each in means.items()},
            "difference": {
                str(length): {target: each.as_json() for target, each in by_target.items()}
                for length, by_target in apart.items()
            },
            "effective_length": {target: self._effective(each) for target, each in means.items()},
        }
        pictures = [Picture("ruler", "RULER, mean of all tasks by length", lambda: self._draw_means(means))]
        needles = {target: self._needles(records) for target, records in results.items()}
        if any(needles.values()):
            title = "Needles found, by their depth and the length of the prompt"
            pictures.append(Picture("needles", title, lambda: self._draw_needles(title, needles)))
        return Report(found, tables, pictures)

    def _headings(self) -> list[str]:
        return [f"{length:,} tokens" for length in self._lengths]

    def _cells(self, records: dict[str, Record] | Any) -> dict[tuple[str, int], Estimate]:
        scores: dict[tuple[str, int], list[float]] = {}
        for item, record in records.items():
            task, length, _ = item.split("/")
            scores.setdefault((task, int(length)), []).append(record["score"])
        return {cell: wilson(sum(each), len(each)) for cell, each in scores.items()}

    def _means(self, cells: dict[tuple[str, int], Estimate]) -> dict[int, float]:
        """The mean over tasks, by length, where all tasks have samples."""
        return {
            length: statistics.fmean(cells[task, length].value for task in self._tasks)
            for length in self._lengths
            if all((task, length) in cells for task in self._tasks)
        }

    def _effective(self, means: dict[int, float]) -> int | None:
        """The longest length up to which every length has the threshold; 0 where none has."""
        longest = 0
        for length, value in means.items():
            if value < self._threshold:
                break
            longest = length
        return longest if means else None

    def _mean_table(self, means: dict[str, dict[int, float]]) -> Table:
        rows = []
        for target, each in means.items():
            effective = self._effective(each)
            shown = "-" if effective is None else f"{effective:,}" if effective else "none"
            values = (f"{each[length]:.3f}" if length in each else "-" for length in self._lengths)
            rows.append((target, *values, shown))
        note = (
            f"Effective length: the longest length up to which every mean is at least {self._threshold:g}. Scores by "
            "task have Wilson's 95 % intervals, which are rather too wide where an answer can be right in part."
        )
        tasks = f"{len(self._tasks)} tasks" if len(self._tasks) > 1 else self._tasks[0]
        title = f"RULER, mean score of {tasks}, {self._num_samples} samples of each at each length:"
        return Table(title, ("target", *self._headings(), "effective length"), rows, note)

    def _scores(self, results: Results, length: int) -> dict[str, dict[str, float]]:
        """Scores of one length, by target and sample."""
        return {
            target: {item: each["score"] for item, each in records.items() if int(item.split("/")[1]) == length}
            for target, records in results.items()
        }

    def _apart_table(self, apart: dict[int, dict[str, Estimate]], first: str, *others: str) -> Table:
        rows = [
            (target, *(each[target].plus_minus("+.3f") if target in each else "-" for each in apart.values()))
            for target in others
        ]
        title = f"Score, difference from {first}, sample by sample; above 0 is better than {first}:"
        note = "The mean over the samples of all tasks that both have, with 95 % t intervals."
        return Table(title, ("target", *self._headings()), rows, note)

    def _needles(self, records: Any) -> dict[tuple[int, int], list[float]]:
        """Scores of single needles, by band of depth and length."""
        found: dict[tuple[int, int], list[float]] = {}
        for item, record in records.items():
            if record["depth"] is not None:
                band = min(int(record["depth"] * _DEPTHS), _DEPTHS - 1)
                found.setdefault((band, int(item.split("/")[1])), []).append(record["score"])
        return found

    def _draw_means(self, means: dict[str, dict[int, float]]) -> Figure:
        from server.plots import style

        drawn, (axes,) = style.figure("RULER, mean of all tasks")
        for number, (target, each) in enumerate(means.items()):
            axes.plot(list(each), list(each.values()), label=target, **style.look(number))
        axes.axhline(self._threshold, color=style.FAINT, linestyle="--", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xticks(self._lengths, self._headings())
        axes.set_ylim(-0.02, 1.02)
        axes.set_ylabel("score")
        axes.legend()
        return drawn

    def _draw_needles(self, title: str, needles: dict[str, dict[tuple[int, int], list[float]]]) -> Figure:
        from server.plots import style

        width = 2.5 + len(needles) * (0.8 + 0.9 * len(self._lengths))
        drawn, columns = style.figure(title, width=max(7.0, width), height=4.2, columns=len(needles))
        for axes, (target, cells) in zip(columns, needles.items(), strict=True):
            grid = [
                [
                    statistics.fmean(cells[band, length]) if (band, length) in cells else float("nan")
                    for length in self._lengths
                ]
                for band in range(_DEPTHS)
            ]
            image = axes.imshow(grid, cmap=style.HEAT, vmin=0, vmax=1, aspect="auto")
            axes.grid(visible=False)
            axes.set_title(target)
            axes.set_xticks(range(len(self._lengths)), [f"{length:,}" for length in self._lengths])
            bands = [f"{100 * band // _DEPTHS} to {100 * (band + 1) // _DEPTHS} %" for band in range(_DEPTHS)]
            axes.set_yticks(range(_DEPTHS), bands)
            for (band, length), scores in cells.items():
                value = statistics.fmean(scores)
                # Numbers, too: no colour has to be told from another.
                axes.text(self._lengths.index(length), band, f"{value:.2f}", ha="center", va="center",
                          color="black" if value > 0.5 else "white")  # fmt: skip
        columns[0].set_ylabel("depth of the needle")
        drawn.colorbar(image, ax=columns, label="score")
        return drawn

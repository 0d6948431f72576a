"""Runs a task against targets. It skips samples that are in the journal, and notes each new result there at once."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from server.evaluation import EvaluationRefused, journal, result, targets
from server.evaluation.asking import Asker
from server.evaluation.items import Item, Task
from server.evaluation.journal import Journal
from server.evaluation.progress_bar import Bar, Clock, bar
from server.evaluation.targets import Target
from server.evaluation.tokens import Tokens

if TYPE_CHECKING:
    from rich.console import Console


class Setting:
    """What all tasks need to know of the targets before they make their items.

    Args:
        tokenizer: where the tokenizer is; None for that of the first target that says where.
        window: the trained length, tokens; None for that of the first target that says it.

    Attributes:
        longest: the longest request that all targets take, tokens; None where none of them says it.

    Raises:
        EvaluationRefused: when there is no tokenizer, or targets cut texts into different tokens.
    """

    def __init__(self, found: Sequence[Target], tokenizer: str | None, window: int | None) -> None:
        places = list(dict.fromkeys(target.place for target in found if target.place))
        if tokenizer is None and not places:
            raise EvaluationRefused(
                f"--tokenizer: no target says where its tokenizer is ({', '.join(each.name for each in found)}): give "
                "the model's folder or name"
            )
        self.tokens = Tokens(tokenizer or places[0])
        if tokenizer is None:
            for place in places[1:]:
                if Tokens(place).fingerprint() != self.tokens.fingerprint():
                    raise EvaluationRefused(
                        f"--target: {places[0]} and {place} cut texts into different tokens, so that log probabilities "
                        "of tokens cannot be compared: evaluate them apart"
                    )
        says = next((target.trained for target in found if target.trained), None)
        self._window = window or says or self.tokens.trained_length()
        self.longest = min((each.max_model_len for each in found if each.max_model_len), default=None)

    @property
    def window(self) -> int:
        """The trained length, tokens.

        Raises:
            EvaluationRefused: when nothing says it.
        """
        if self._window is None:
            raise EvaluationRefused(
                "--window: no target says the length that its model was trained on: give it, in tokens"
            )
        return self._window


def evaluate(
    found: Sequence[Target],
    task: Task,
    out: pathlib.Path,
    about: dict[str, Any],
    console: Console,
    *,
    concurrency: int,
    forces_tokens: bool = False,
) -> result.Report:
    """Measure what is not in the journal yet, and write the report; gives the report.

    Args:
        about: for the report: versions and options that the journal need not have in common.
        console: where progress is shown.
        concurrency: requests at once.

    Raises:
        EvaluationRefused: when a target cannot be measured as asked.
    """
    with console.status("making samples"):
        items = task.items()
    for target in found:
        _check_length(task, target.name, target.max_model_len)
    with journal.open_journal(out, task.name, task.options) as kept:
        for target in found:
            kept.begin_target(target.name, target.described)
        todo = {each.name: [item for item in items if item.id not in kept.results[each.name]] for each in found}
        clock = Clock(sum(item.cost for each in todo.values() for item in each))
        for target in found:
            if missing := todo[target.name]:
                with targets.serve_target(target, console, forces_tokens=forces_tokens) as address:
                    model = targets.ask_model(target, address)
                    _check_length(task, target.name, model.max_model_len)
                    asker = Asker(target.name, address, target.key, model.name)
                    with bar(console, target.name, len(items) - len(missing), len(items), clock) as shown:
                        asyncio.run(_measure(task, asker, missing, kept, concurrency, shown))
        reported = task.report(kept.results)
        described = {name: _what(each) for name, each in kept.targets.items()}
        everything = {"task": task.name, **about, **task.options, "targets": described}
        for file in result.write(out, reported, everything):
            console.print(f"wrote {file}", highlight=False)
    return reported


async def _measure(
    task: Task, asker: Asker, items: Sequence[Item], kept: Journal, concurrency: int, shown: Bar
) -> None:
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            record = await task.measure(asker, item)
            kept.add(asker.target, item.id, item.seed, record)
            shown.advance(item.cost)

    async with asker:
        workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(items)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)


def _check_length(task: Task, name: str, max_model_len: int | None) -> None:
    if max_model_len is not None and task.longest > max_model_len:
        raise EvaluationRefused(
            f"--target {name}: serves requests of {max_model_len:,} tokens, but this evaluation has requests of "
            f"{task.longest:,}: give smaller lengths, or a larger max_model_len to the server"
        )


def _what(described: dict[str, Any]) -> str:
    """A target in one line of a report."""
    if "served_model" in described:
        return f"a server of {described['served_model']}"
    if stock := described.get("stock vLLM"):
        told = ", ".join(f"{key} {value}" for key, value in stock["hf_overrides"]["rope_parameters"].items())
        return f"stock vLLM with {described['model']} ({told})"
    scaling = described.get("scaling", {})
    told = ", ".join(f"{key} {value}" for key, value in scaling.items())
    return f"{described['model']}" + (f" ({told})" if told else "")

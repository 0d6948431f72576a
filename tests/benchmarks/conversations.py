"""The first token of each turn of a growing conversation: ``python -m tests.benchmarks.conversations``.

Several deployments are served side by side and asked in turns, each for the next turn of the same conversation. What a
conversation says is random, so nobody finds anything cached but its own turns. The figures are ratios over YaRN at one
scale, which keeps what it cached whatever a conversation grows to, and runs short turns at that scale, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import random
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from server.deployment.load import load
from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.accuracy import CONFIG
from tests.benchmarks.servers import ServerFailed, running
from tests.benchmarks.variants import Checkpoint, command, served_name, variants

if TYPE_CHECKING:
    from openai import AsyncOpenAI

STATIC, *OTHERS = "static-yarn", "yarn", "yarn-continue", "rerope"  # of variants.py; static is stock vLLM
SCALES = (1, 2, 4)
_ANSWER = 20  # tokens
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 300, 900  # ordinary pieces of words in every vocabulary that is shipped
_console = Console(soft_wrap=True)


@dataclasses.dataclass(frozen=True)
class Turn:
    """
    Attributes:
        seconds: from sending the prompt to its first token.
        prefilled: tokens of the prompt that were not cached.
    """

    seconds: float
    prefilled: int


# Of each deployment, the turns of each conversation.
Talked = dict[str, list[list[Turn]]]


def main(
    config: Annotated[
        pathlib.Path, typer.Option(exists=True, dir_okay=False, help="The deployment; its methods are left out.")
    ] = CONFIG,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Changes a setting of all; repeat.")
    ] = None,
    turns: Annotated[int, typer.Option(min=2, help="Turns of a conversation.")] = 12,
    samples: Annotated[int, typer.Option(min=2, help="Conversations.")] = 8,
    seed: Annotated[int, typer.Option(help="Of what they say.")] = 0,
    out: Annotated[pathlib.Path | None, typer.Option(help="Write the result to OUT.json and OUT.md.")] = None,
) -> None:
    """Measure the first token of each turn, of every deployment in one interleaved run."""
    settings = load(config, overrides)
    checkpoint = Checkpoint.of(settings)
    deployments = {name: variants(checkpoint, SCALES)[name] for name in (STATIC, *OTHERS)}
    longest = SCALES[-1] * checkpoint.trained
    told = [*(overrides or ()), "server.enable_prompt_tokens_details=true"]
    of_stock = settings.model_copy(update={"engine": settings.engine | {"enable_prompt_tokens_details": True}})
    try:
        with contextlib.ExitStack() as servers:
            addresses = {
                deployed.name: servers.enter_context(running(command(deployed, config, told, of_stock, longest)))
                for deployed in deployments.values()
            }
            talked = asyncio.run(talk(addresses, served_name(settings), checkpoint.trained, turns, samples, seed))
    except ServerFailed as error:
        _console.print(f"[bold red]failed[/] {error}", highlight=False)
        raise typer.Exit(1) from None
    table = results_table(talked)
    _console.print(table.for_terminal())
    if out:
        result = {name: [[dataclasses.asdict(turn) for turn in one] for one in each] for name, each in talked.items()}
        provenance = record.Provenance.of_this_run("tests.benchmarks.conversations")
        for file in record.write(out, result, provenance, f"{table.title}:\n\n{table.as_markdown()}\n\n{table.note}"):
            _console.print(f"wrote {file}", highlight=False)


def results_table(talked: Talked) -> Table:
    """A row for each turn: the median of its ratios over the first deployment, conversation by conversation."""
    first, *others = talked
    rows = []
    for number in range(len(talked[first][0])):
        taken = [conversation[number].seconds for conversation in talked[first]]
        row = [str(number + 1), f"{1000 * statistics.median(taken):.0f} ms"]
        row += [f"{_ratio(talked, name, number):.2f}" for name in others]
        rows.append((*row, *(str(talked[name][0][number].prefilled) for name in talked)))
    totals = (str(sum(turn.prefilled for turn in talked[name][0])) for name in talked)
    medians = (f"{statistics.median(_ratio(talked, name, n) for n in range(len(rows))):.2f}" for name in others)
    rows.append(("all", "", *medians, *totals))
    return Table(
        title="First token of each turn of a conversation from half to four times the trained length",
        headings=("turn", first, *(f"{name}, over it" for name in others), *(f"prefilled: {name}" for name in talked)),
        rows=tuple(rows),
        note=f"Medians of {len(talked[first])} conversations; the last row is the median over turns, and sums.",
    )


def _ratio(talked: Talked, name: str, number: int) -> float:
    pairs = zip(talked[name], next(iter(talked.values())), strict=True)
    return statistics.median(ours[number].seconds / theirs[number].seconds for ours, theirs in pairs)


async def talk(addresses: dict[str, str], model: str, trained: int, turns: int, samples: int, seed: int) -> Talked:
    """Hold the conversations, one after the other."""
    from openai import AsyncOpenAI

    chosen = random.Random(seed)
    talked: Talked = {name: [] for name in addresses}
    heard = (SCALES[-1] * trained - trained // 2) // turns - _ANSWER
    async with contextlib.AsyncExitStack() as clients:
        asked = {
            name: await clients.enter_async_context(
                AsyncOpenAI(base_url=f"{address}/v1", api_key="none", timeout=3600, max_retries=0)
            )
            for name, address in addresses.items()
        }
        for sample in range(-1, samples):  # the first one warms the servers
            said = [
                [chosen.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(length)]
                for length in (trained // 2 + heard, *[heard] * (turns - 1))
            ]
            of_sample = await _conversation(asked, model, said, chosen)
            if sample >= 0:
                for name, each in of_sample.items():
                    talked[name].append(each)
    return talked


async def _conversation(
    asked: dict[str, AsyncOpenAI], model: str, said: Sequence[list[int]], chosen: random.Random
) -> dict[str, list[Turn]]:
    histories: dict[str, list[int]] = {name: [] for name in asked}
    found: dict[str, list[Turn]] = {name: [] for name in asked}
    for words in said:
        for name in chosen.sample(sorted(asked), len(asked)):
            histories[name] = histories[name] + words
            turn, answer = await _ask(asked[name], model, histories[name])
            histories[name] += answer
            found[name].append(turn)
    return found


async def _ask(client: AsyncOpenAI, model: str, prompt: list[int]) -> tuple[Turn, list[int]]:
    extra: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True}
    first, cached = 0.0, 0
    answer: list[int] = []
    sent = time.perf_counter()
    stream = await client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=_ANSWER,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=extra,
    )
    async for event in stream:
        if event.choices:
            first = first or time.perf_counter() - sent
            answer += event.choices[0].model_dump().get("token_ids") or []
        if event.usage and event.usage.model_dump().get("prompt_tokens_details"):
            cached = event.usage.model_dump()["prompt_tokens_details"]["cached_tokens"]
    return Turn(first, len(prompt) - cached), answer


if __name__ == "__main__":
    typer.run(main)

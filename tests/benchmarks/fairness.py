"""How long a short request waits beside long prompts: ``python -m tests.benchmarks.fairness``.

A server reads long prompts, over and over. Meanwhile short requests arrive one after another, each at a moment of its
own. The time to their first token is compared with their time on the idle server; the time from one of their tokens to
the next is the length of the server's steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import random
import statistics
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.servers import Command, ServerFailed, running

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_console = Console(soft_wrap=True)
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 1_000, 30_000  # ordinary words in every vocabulary that is shipped
_SECONDS_BETWEEN_ARRIVALS = 3.0  # at most


@dataclasses.dataclass(frozen=True)
class Answer:
    """When the tokens of one short request came, in seconds after it was sent."""

    at: tuple[float, ...]

    @property
    def first(self) -> float:
        return self.at[0]

    @property
    def steps(self) -> list[float]:
        """Seconds from each token to the next."""
        return [later - earlier for earlier, later in zip(self.at, self.at[1:], strict=False)]


@dataclasses.dataclass(frozen=True)
class Measured:
    """A deployment's short requests on the idle server, and beside the long prompts."""

    name: str
    alone: tuple[Answer, ...]
    beside: tuple[Answer, ...]

    @property
    def bound(self) -> float:
        """Three times the time alone and one step, in seconds: what a short request should wait at most."""
        return 3 * statistics.median(one.first for one in self.alone) + self.step

    @property
    def step(self) -> float:
        """Median seconds of a step beside the long prompts."""
        return statistics.median(self.steps)

    @property
    def steps(self) -> list[float]:
        return [step for one in self.beside for step in one.steps]


def main(
    target: Annotated[
        str, typer.Option(help="What posenc serve gets: a model or a shipped configuration.")
    ] = "smollm2",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", help="Settings of another deployment to measure, divided by commas; repeat."
        ),
    ] = None,
    long_prompts: Annotated[int, typer.Option(min=0, help="Prompts that are read at once.")] = 2,
    long_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a long prompt.")] = 12_000,
    short_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a short prompt.")] = 59,
    new_tokens: Annotated[int, typer.Option(min=2, help="New tokens of a short request.")] = 12,
    samples: Annotated[int, typer.Option(min=1, help="Short requests, alone and beside.")] = 10,
    seed: Annotated[int, typer.Option(help="Of prompts and moments of arrival.")] = 0,
    out: Annotated[pathlib.Path | None, typer.Option(help="Write the result to OUT.json and OUT.md.")] = None,
) -> None:
    """Measure the first token of short requests beside long prompts, as shipped and with settings changed."""
    results = []
    for changed in ["", *(overrides or [])]:
        sets = [part for one in changed.split(",") if one for part in ("--set", one)]
        arguments = (sys.executable, "-m", "server", "serve", target, *sets, "--set", "server.port={port}")
        try:
            with running(Command(arguments)) as address:
                work = _measure(
                    address, changed or "as shipped", long_prompts, long_tokens, short_tokens, new_tokens, samples, seed
                )
                results.append(asyncio.run(work))
        except ServerFailed as error:
            _console.print(f"[bold red]failed[/] {error}", highlight=False)
            raise typer.Exit(1) from None
        _console.print(results_table(results, long_prompts, long_tokens, short_tokens).for_terminal())
    if out:
        table = results_table(results, long_prompts, long_tokens, short_tokens)
        result = {"deployments": [dataclasses.asdict(one) for one in results]}
        provenance = record.Provenance.of_this_run("tests.benchmarks.fairness")
        for file in record.write(out, result, provenance, f"{table.title}:\n\n{table.as_markdown()}\n\n{table.note}"):
            _console.print(f"wrote {file}", highlight=False)


def results_table(results: list[Measured], long_prompts: int, long_tokens: int, short_tokens: int) -> Table:
    """A row for each deployment."""
    return Table(
        title=f"First token of a request of {short_tokens} tokens beside {long_prompts} prompts of {long_tokens:,}",
        headings=("deployment", "alone", "beside", "longest", "three times alone and one step", "step", "longest step"),
        rows=tuple(
            (
                one.name,
                *(
                    f"{seconds:.2f} s"
                    for seconds in (
                        statistics.median(answer.first for answer in one.alone),
                        statistics.median(answer.first for answer in one.beside),
                        max(answer.first for answer in one.beside),
                        one.bound,
                        one.step,
                        max(one.steps),
                    )
                ),
            )
            for one in results
        ),
        note="Medians, unless a heading says otherwise. A step: from one token of a short request to the next.",
    )


async def _measure(
    address: str, name: str, prompts: int, long_tokens: int, short_tokens: int, new_tokens: int, samples: int, seed: int
) -> Measured:
    from openai import AsyncOpenAI

    chosen = random.Random(seed)
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", timeout=3600, max_retries=0) as client:
        model = (await client.models.list()).data[0].id

        async def short() -> Answer:
            return await _ask(client, model, _prompt(chosen, short_tokens), new_tokens)

        async def reader() -> None:
            while True:
                await _ask(client, model, _prompt(chosen, long_tokens), 1)

        await short()  # the first request of a server warms it
        alone = [await short() for _ in range(samples)]
        readers = [asyncio.create_task(reader()) for _ in range(prompts)]
        beside = []
        try:
            for _ in range(samples):
                await asyncio.sleep(chosen.uniform(0, _SECONDS_BETWEEN_ARRIVALS))
                beside.append(await short())
                if ended := [one for one in readers if one.done()]:
                    ended[0].result()  # raises what ended it
        finally:
            for one in readers:
                one.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*readers)
    return Measured(name, tuple(alone), tuple(beside))


async def _ask(client: AsyncOpenAI, model: str, prompt: list[int], new_tokens: int) -> Answer:
    sent, at = time.perf_counter(), []
    extra: dict[str, Any] = {"ignore_eos": True}
    stream = await client.completions.create(
        model=model, prompt=prompt, max_tokens=new_tokens, stream=True, extra_body=extra
    )
    async for event in stream:
        if event.choices:
            at.append(time.perf_counter() - sent)
    return Answer(tuple(at))


def _prompt(chosen: random.Random, tokens: int) -> list[int]:
    return [chosen.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(tokens)]


if __name__ == "__main__":
    typer.run(main)

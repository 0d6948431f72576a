"""Ask a server for everything that was sampled, some requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_ANSWER_SECONDS = 7200.0  # a machine that others use as well may take long, and a lost answer ends the run
_Cell = TypeVar("_Cell")
_Sample = TypeVar("_Sample")


async def ask_cell_by_cell(
    address: str,
    samples: Sequence[tuple[_Cell, Sequence[_Sample]]],
    one: Callable[[AsyncOpenAI, _Cell, _Sample], Awaitable[None]],
    *,
    concurrency: int,
    advance: Callable[[], None],
) -> list[_Cell]:
    """Ask for the samples of one cell, and then of the next.

    Args:
        one: asks for one sample, and counts the answer in its cell.
        concurrency: requests at once.
        advance: called after every response.

    Returns:
        The cells.
    """
    from openai import AsyncOpenAI

    slots = asyncio.Semaphore(concurrency)
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", timeout=_ANSWER_SECONDS, max_retries=0) as client:

        async def counted(cell: _Cell, sample: _Sample) -> None:
            async with slots:
                await one(client, cell, sample)
            advance()

        for cell, made in samples:
            await asyncio.gather(*(counted(cell, sample) for sample in made))
    return [cell for cell, _ in samples]

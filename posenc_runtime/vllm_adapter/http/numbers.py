"""Fails requests whose log probabilities are NaN: the model's weights are damaged, and the client is not to blame."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from typing import Any

NO_NUMBERS = "the model computed no numbers (NaN): its weights may be damaged, or too large for its data type"


def fail_without_numbers(engine: Any) -> None:
    """Have requests that ask for log probabilities fail with status 500 where these are NaN.

    vLLM itself cannot write NaN into an answer, and says to the client that the request was bad.

    Args:
        engine: vLLM's client of a running engine; its ``generate`` is wrapped.
    """
    stock = engine.generate

    async def generate(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        from vllm.exceptions import GenerationError

        async for output in stock(*args, **kwargs):
            if has_nan(output):
                raise GenerationError(NO_NUMBERS)
            yield output

    engine.generate = generate


def has_nan(output: Any) -> bool:
    """Whether a log probability of an engine's output is NaN."""
    positions = [*(output.prompt_logprobs or ()), *_positions(output.outputs)]
    return any(math.isnan(each.logprob) for position in positions if position for each in position.values())


def _positions(answers: Iterable[Any]) -> Iterable[Any]:
    for answer in answers:
        yield from answer.logprobs or ()

"""Says whose fault it is when no token fits the constraint of an answer.

vLLM then ends the request as failed, and its server answers with status 500. Only what the client asked for can lead to
that: a grammar that cannot be made, or one that leaves no token beside ``allowed_token_ids``, ``min_tokens``,
``bad_words`` or ``logit_bias``; or a model without a token that ends an answer.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

_FAILED = "error"


def blame_constraints(engine: Any) -> None:
    """Have requests whose constraint cannot be kept refused.

    Args:
        engine: vLLM's client of it; its ``generate`` is wrapped.
    """
    engine.generate = blaming(engine.generate)


def blaming(stock: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """Wrap ``generate`` of vLLM's client; what it gives raises ``ValueError``, which is answered with status 400."""

    @functools.wraps(stock)
    async def generate(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        is_constrained = getattr(sampling_params, "structured_outputs", None) is not None
        async for output in stock(prompt, sampling_params, *args, **kwargs):
            if is_constrained and any(each.finish_reason == _FAILED for each in output.outputs):
                raise ValueError(
                    "structured_outputs, response_format: no token of the model continues the answer: the constraint "
                    "cannot be made into a grammar, or contradicts allowed_token_ids, min_tokens, bad_words, "
                    "logit_bias or the model's vocabulary"
                )
            yield output

    return generate

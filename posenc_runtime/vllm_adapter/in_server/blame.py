"""Whose fault a failed request is: the client's, or that of damaged weights.

A client's mistake leaves no traceback in the log of vLLM's server, and gets an answer with a status of 4xx.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

_LOGGERS = ("vllm.entrypoints.anthropic.api_router", "vllm.entrypoints.cohere.api_router")
_FAILED = "error"
NO_NUMBERS = "the model computed no numbers (NaN): its weights may be damaged, or too large for its data type"


def log_no_client_errors() -> None:
    """Keep errors out of the log if clients read them in their answers.

    Routes of OpenAI's API log nothing for a request that gets status 400. Those of Anthropic's and Cohere's log a
    traceback at level ERROR, so that a client whose prompt is too long looks like a failure of the server.
    """
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_the_servers)


def _is_the_servers(record: logging.LogRecord) -> bool:
    from vllm.exceptions import GracefulHTTPError, VLLMClientError

    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, ValueError | GracefulHTTPError | VLLMClientError)


def blame_constraints(engine: Any) -> None:
    """Refuse requests with a constraint that the model cannot keep.

    vLLM ends such a request as failed, and its server answers with status 500. Only a client's wishes can lead to that:
    a grammar that cannot be made, or one that leaves no token beside ``allowed_token_ids``, ``min_tokens``,
    ``bad_words`` or ``logit_bias``; or a model without a token that ends an answer.

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


def fail_without_numbers(engine: Any) -> None:
    """If log probabilities are NaN, answer the requests that ask for them with status 500.

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

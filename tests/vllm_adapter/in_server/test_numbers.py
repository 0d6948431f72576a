"""A model that computes NaN is the server's fault."""

from __future__ import annotations

import math
import types
from collections.abc import AsyncIterator
from typing import Any

import pytest
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.exceptions import GenerationError
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput

from posenc_runtime.vllm_adapter.in_server.blame import NO_NUMBERS, fail_without_numbers


def output(logprobs: Any, prompt_logprobs: Any = None) -> RequestOutput:
    answer = CompletionOutput(index=0, text="", token_ids=[1], cumulative_logprob=None, logprobs=logprobs)
    return RequestOutput("one", "a", [1], prompt_logprobs, [answer], finished=True)


async def answers(of: RequestOutput) -> list[Any]:
    async def stock(*_: Any) -> AsyncIterator[RequestOutput]:
        yield of

    engine = types.SimpleNamespace(generate=stock)
    fail_without_numbers(engine)
    return [each async for each in engine.generate("prompt", None, "one")]


@pytest.mark.parametrize("logprobs", [None, [{1: Logprob(-0.5), 2: Logprob(-math.inf)}]], ids=["none", "numbers"])
async def test_answers_with_numbers_pass(logprobs: Any) -> None:
    assert len(await answers(output(logprobs, logprobs and [None, *logprobs]))) == 1


@pytest.mark.parametrize("where", ["answer", "prompt"])
async def test_answers_without_numbers_are_the_server_s_fault(where: str) -> None:
    nan = [{1: Logprob(-0.5), 2: Logprob(math.nan)}]
    with pytest.raises(GenerationError) as raised:
        await answers(output(nan) if where == "answer" else output(None, [None, *nan]))
    error = create_error_response(raised.value).error
    assert (error.code, error.message) == (500, NO_NUMBERS)

"""Requests whose constraint leaves no token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from posenc_runtime.vllm_adapter.in_server.blame import blaming


def generate(*reasons: str | None) -> Any:
    async def stock(prompt: Any, sampling_params: Any, request_id: str) -> AsyncIterator[Any]:
        for reason in reasons:
            yield SimpleNamespace(outputs=[SimpleNamespace(finish_reason=reason)])

    return blaming(stock)


async def given(generate: Any, constraint: Any) -> list[Any]:
    params = SimpleNamespace(structured_outputs=constraint)
    return [output.outputs[0].finish_reason async for output in generate("a", params, "id")]


async def test_a_constrained_request_that_failed_is_its_clients_fault() -> None:
    with pytest.raises(ValueError, match="no token of the model continues the answer"):
        await given(generate(None, "error"), {"regex": "a"})


@pytest.mark.parametrize(("constraint", "reason"), [(None, "error"), ({"regex": "a"}, "stop"), ({"regex": "a"}, None)])
async def test_other_ends_are_passed_on(constraint: Any, reason: str | None) -> None:
    assert await given(generate(None, reason), constraint) == [None, reason]

"""What vLLM's routes of other APIs log of requests that fail."""

from __future__ import annotations

from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.anthropic import api_router
from vllm.exceptions import GracefulHTTPError, VLLMValidationError

from posenc_runtime.vllm_adapter.in_server.blame import log_no_client_errors


async def logged(error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a request to ``/v1/messages`` leaves in the log when vLLM's handler raises."""

    async def create_messages(*_: Any) -> None:
        raise error

    handler = SimpleNamespace(create_messages=create_messages)
    monkeypatch.setattr(api_router, "messages", lambda request: handler)
    caplog.set_level("DEBUG", logger=api_router.logger.name)
    log_no_client_errors()
    state = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace()))
    answer = await api_router.create_messages.__wrapped__.__wrapped__(SimpleNamespace(), state)
    assert answer.status_code >= 400
    return [record.getMessage() for record in caplog.records if record.name == api_router.logger.name]


@pytest.mark.parametrize(
    "error",
    [
        VLLMValidationError("the prompt is too long", parameter="messages"),
        ValueError("the tokens do not fit"),
        GracefulHTTPError("the queue is full", HTTPStatus.SERVICE_UNAVAILABLE),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_clients_mistake_is_not_logged(
    error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await logged(error, caplog, monkeypatch) == []


async def test_a_failure_of_the_server_is(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await logged(RuntimeError("no GPU"), caplog, monkeypatch) == ["Error in create_messages: no GPU"]

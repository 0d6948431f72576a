"""Every request has a name, its answer returns it, and what runs for it knows it."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from posenc_runtime.vllm_adapter.in_server.request_log import x_request_id
from server.app.edge.request_ids import RequestIdMiddleware


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the header that it sees and with the name that is current, and names the request anew."""
    seen = [value.decode() for name, value in scope["headers"] if name == b"x-request-id"]
    body = json.dumps([*seen, x_request_id.get()]).encode()
    headers = [(b"x-request-id", b"of-another")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def ask(headers: dict[str, str] | None = None) -> httpx.Response:
    transport = httpx.ASGITransport(app=RequestIdMiddleware(application))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        return await client.get("/", headers=headers)


async def test_a_name_that_is_given_is_seen_and_returned() -> None:
    answer = await ask({"X-Request-Id": "req_1/a.b:c=d@e-f"})
    assert answer.headers.get_list("x-request-id") == ["req_1/a.b:c=d@e-f"]
    assert answer.json() == ["req_1/a.b:c=d@e-f"] * 2


async def test_a_request_without_a_name_gets_one_of_its_own() -> None:
    first, second = await ask(), await ask()
    assert re.fullmatch(r"[0-9a-f]{32}", first.headers["x-request-id"])
    assert first.json() == [first.headers["x-request-id"]] * 2
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


async def test_the_name_is_forgotten_afterwards() -> None:
    await ask({"X-Request-Id": "once"})
    assert x_request_id.get() is None


@pytest.mark.parametrize("name", ["", " ", "a b", "a" * 129, 'a"b', "{}", "a;b"])
async def test_a_name_that_could_be_read_as_something_else_is_refused(name: str) -> None:
    answer = await ask({"X-Request-Id": name})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "BadRequestError" and error["message"].startswith("the header X-Request-Id must have")

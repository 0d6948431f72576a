"""What probes answer in each state of a server, and what a server that drains answers to requests."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from posenc_runtime.vllm_adapter.in_server.engine_state import Capacity, NoToken
from posenc_runtime.vllm_adapter.in_server.stopping import CUT, Draining
from posenc_runtime.vllm_adapter.settings.front_end import LimitSettings
from server.app.edge.limits import LimitsMiddleware
from server.app.health import state
from server.app.health.probes import probes_router
from server.app.health.refusing import RefusingWhileDraining
from server.app.health.state import Health


class Served:
    """A server without an engine, whose state is set."""

    def __init__(self) -> None:
        self.draining = Draining()
        self.engine = types.SimpleNamespace(errored=False)
        self.pulse = types.SimpleNamespace(unanswered_seconds=0.0, sleeps=False)
        self.may_answer = asyncio.Event()
        self.app = FastAPI()
        self.app.include_router(probes_router())
        self.app.add_api_route("/v1/completions", self.complete, methods=["POST"])
        self.app.add_api_route("/metrics", lambda: "read", methods=["GET"])
        self.app.add_middleware(RefusingWhileDraining, draining=self.draining)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://server")

    async def complete(self, status: int = 200) -> JSONResponse:
        await self.may_answer.wait()
        if status == 600:
            raise RuntimeError("the application fails")
        return JSONResponse("answer", status)

    def start(self) -> None:
        self.app.state.posenc_health = Health(self.engine, self.draining, self.pulse, 30.0)  # type: ignore[arg-type]

    async def said(self, route: str) -> tuple[int, str, str]:
        answer = await self.client.get(route)
        assert answer.headers["cache-control"] == "no-store"
        return answer.status_code, answer.json()["status"], answer.json().get("reason", "")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    async with served.client:
        yield served


async def test_a_server_that_starts_lives_and_is_not_ready(served: Served) -> None:
    assert (await served.said("/health/live"))[0] == 200
    assert await served.said("/health/ready") == (503, "not ready", "the server is starting")
    served.start()
    for route in ("/health/ready", "/health", "/ping"):
        assert await served.said(route) == (200, "ready", "")


@pytest.mark.parametrize(
    ("what", "live", "reason"),
    [
        ({"engine": {"errored": True}}, 503, "the engine has ended"),
        ({"draining": {"active": True}}, 200, "the server is shutting down"),
        ({"pulse": {"unanswered_seconds": 31.0}}, 200, "has not answered for 31 s, more than health.stalled_seconds"),
        ({"pulse": {"sleeps": True}}, 200, "the engine is paused or asleep"),
    ],
    ids=["dead", "draining", "stalled", "asleep"],
)
async def test_a_server_that_takes_no_requests_says_why(
    what: dict[str, dict[str, Any]], live: int, reason: str, served: Served
) -> None:
    served.start()
    for name, attributes in what.items():
        vars(getattr(served, name)).update(attributes)
    assert (await served.said("/health/live"))[0] == live
    for route in ("/health/ready", "/health", "/ping", "/health/generate"):
        status, _, said = await served.said(route)
        assert status == 503 and reason in said


async def test_one_token_is_asked_for_at_a_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.start()
    asked = []

    async def one_token(engine: Any, seconds: float) -> None:
        asked.append(seconds)
        await asyncio.sleep(0.05)
        if len(asked) == 2:
            raise NoToken("no token after 30 s")

    monkeypatch.setattr(state, "one_token", one_token)
    answers = await asyncio.gather(*(served.said("/health/generate") for _ in range(5)))
    assert set(answers) == {(200, "generating", "")} and asked == [30.0]
    assert await served.said("/health/generate") == (503, "not generating", "no token after 30 s")


async def test_while_it_drains_a_server_answers_what_runs_and_refuses_what_comes(served: Served) -> None:
    running = asyncio.create_task(served.client.post("/v1/completions"))
    await asyncio.sleep(0.05)
    served.draining.active = True
    assert served.draining._num_calls == 1
    refused = await served.client.post("/v1/completions")
    assert refused.status_code == 503 and refused.headers["retry-after"] == "10"
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert refused.headers["connection"] == "close"
    error = refused.json()["error"]
    assert error["type"] == "Service Unavailable" and error["code"] == 503 and error["param"] is None
    assert (await served.client.get("/metrics")).status_code == 200
    served.may_answer.set()
    assert (await running).status_code == 200
    assert served.draining._num_calls == 0


async def test_a_request_that_was_cut_says_when_to_try_again(served: Served) -> None:
    running = asyncio.create_task(served.client.post("/v1/completions?status=503"))
    await asyncio.sleep(0.05)
    served.draining.active = True
    served.may_answer.set()
    assert (await running).headers["retry-after"] == "10"


async def test_a_request_whose_body_comes_after_the_drain_is_told_to_try_again(served: Served) -> None:
    served.app.add_middleware(
        LimitsMiddleware, limits=LimitSettings(), capacity=Capacity, refused=lambda reason: None
    )  # reads the body before the application does
    served.app.add_middleware(RefusingWhileDraining, draining=served.draining)
    served.may_answer.set()

    async def never_complete() -> AsyncIterator[bytes]:
        yield b"{"
        served.draining.active = True
        served.draining.over.set()
        await asyncio.sleep(3600)

    too_late(await served.client.post("/v1/completions", content=never_complete()))


async def test_a_request_that_has_missed_the_engine_is_told_to_try_again(served: Served) -> None:
    running = [
        asyncio.create_task(served.client.post("/v1/completions?status=500")),
        asyncio.create_task(served.client.post("/v1/completions?status=600")),  # the application raises
        asyncio.create_task(served.client.post("/v1/completions?status=400")),
    ]
    await asyncio.sleep(0.05)
    served.draining.active = True
    served.draining.over.set()
    served.may_answer.set()
    for each in running[:2]:
        too_late(await each)
    assert (await running[2]).status_code == 400


async def test_a_failure_before_the_drain_is_over_is_the_application_s(served: Served) -> None:
    served.may_answer.set()
    assert (await served.client.post("/v1/completions?status=500")).status_code == 500


def too_late(answer: httpx.Response) -> None:
    assert answer.status_code == 503 and answer.headers["retry-after"] == "10"
    assert answer.json()["error"] == {"message": CUT, "type": "Service Unavailable", "param": None, "code": 503}

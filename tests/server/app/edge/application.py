"""A small application behind the limits, and what a client gets from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import httpx
from fastapi import Body, FastAPI, Request
from fastapi.responses import StreamingResponse

from posenc_runtime.vllm_adapter.in_server.engine_state import Capacity
from posenc_runtime.vllm_adapter.settings.front_end import LimitSettings
from server.app.edge.access import KEY
from server.app.edge.limits import LimitsMiddleware
from server.app.edge.parsing import use_what_is_parsed


class Served:
    """An application that tells what reached it.

    Attributes:
        refused: the reasons of all refusals.
        bodies: what the routes got.
        release: set to let ``/wait`` answer.
        left: how often a client of ``/wait`` or ``/stream`` left.
    """

    def __init__(self, *, capacity: Capacity | None = None, **limits: Any) -> None:
        use_what_is_parsed()
        self.capacity = capacity or Capacity()
        self.refused: list[str] = []
        self.bodies: list[Any] = []
        self.release = asyncio.Event()
        self.left = 0
        self.app = FastAPI()
        self.app.add_middleware(
            LimitsMiddleware,
            limits=LimitSettings(**limits),
            capacity=lambda: self.capacity,
            refused=self.refused.append,
        )

        @self.app.post("/v1/completions")
        async def completions(request: Annotated[dict[str, Any], Body()]) -> dict[str, str]:
            self.bodies.append(request)
            return {"answered": "yes"}

        @self.app.post("/wait")
        async def wait(request: Request) -> dict[str, str]:
            leaving = asyncio.ensure_future(_left(request))
            await asyncio.wait([leaving, asyncio.ensure_future(self.release.wait())], return_when="FIRST_COMPLETED")
            self.left += leaving.done()
            return {"answered": "yes"}

        @self.app.post("/stream")
        @self.app.post("/v1/messages")
        async def stream() -> StreamingResponse:
            async def events() -> AsyncIterator[str]:
                try:
                    while True:
                        yield "data: {}\n\n"
                        await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    self.left += 1
                    raise

            return StreamingResponse(events(), media_type="text/event-stream")

        @self.app.post("/upload")
        async def upload(request: Request) -> int:
            async with request.form() as form:
                return len(await form["file"].read())  # type: ignore[union-attr]

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        async def app(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
            await self.app({**scope, KEY: key}, receive, send)

        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")

    async def post(self, body: Any, route: str = "/v1/completions", **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client() as client:
            return await client.post(route, content=content, headers={"content-type": "application/json", **headers})


async def _left(request: Request) -> None:
    await request.body()
    while (await request.receive())["type"] != "http.disconnect":
        pass

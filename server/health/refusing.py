"""Refuses new requests while a server drains, and counts those under way."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posenc_runtime.vllm_adapter.http.draining import Draining

_RETRY_SECONDS = 10
_READING = ("GET", "HEAD", "OPTIONS")
_PROBE = "/ping"
_REFUSAL = {
    "message": "the server is shutting down and takes no new requests: send this one to another server, or again later",
    "type": "ServiceUnavailableError",
    "param": None,
    "code": 503,
}


class RefusingWhileDraining:
    """ASGI middleware. Requests that only read are answered to the end, and not waited for."""

    def __init__(self, app: ASGIApp, draining: Draining) -> None:
        self._app, self._draining = app, draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "websocket" and self._draining.active:
            await receive()
            await send({"type": "websocket.close", "code": 1012, "reason": "the server is shutting down"})
        elif kind != "http" or scope["method"] in _READING or scope["path"] == _PROBE:
            await self._app(scope, receive, send)
        elif self._draining.active:
            await _refuse(send)
        else:
            with self._draining.call():
                await self._app(scope, receive, self._naming_the_wait(send))

    def _naming_the_wait(self, send: Send) -> Send:
        """Say when to try again in answers with status 503 to requests that were under way."""

        async def sending(message: Message) -> None:
            if self._draining.active and message["type"] == "http.response.start" and message["status"] == 503:
                message["headers"] = [*message.get("headers", ()), *_RETRY]
            await send(message)

        return sending


_RETRY: list[tuple[bytes, bytes]] = [(b"retry-after", str(_RETRY_SECONDS).encode()), (b"connection", b"close")]


async def _refuse(send: Send) -> None:
    body = json.dumps({"error": _REFUSAL}).encode()
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *_RETRY]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})

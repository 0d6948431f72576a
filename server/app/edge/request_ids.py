"""Gives each request a name: that of its header ``X-Request-Id``, or a new one. Every answer returns it.

vLLM makes the id of a request from this header, so that answers, log lines and traces name the same request. vLLM's own
middleware (``enable_request_id_headers``) returns an id of its own where a client sends none.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.in_server.request_log import x_request_id
from server.app.edge.error_answers import RequestRefused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
# What can stand in a log line and in a header without being read as something else.
_ALLOWED = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestIdMiddleware:
    """Pure ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == HEADER), None)
        if given is not None and not _ALLOWED.fullmatch(given):
            message = (
                f"the header X-Request-Id must have 1 to 128 letters, digits or any of . _ : / + = @ -, got {given!r}"
            )
            await RequestRefused(message[:300], reason="request_id").answer(scope, receive, send)
            return
        name = given or uuid.uuid4().hex.encode()
        if given is None:
            scope["headers"] = [*scope["headers"], (HEADER, name)]

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *(each for each in message.get("headers", ()) if each[0] != HEADER),
                    (HEADER, name),
                ]
            await send(message)

        token = x_request_id.set(name.decode())
        try:
            await self._app(scope, receive, named)
        finally:
            x_request_id.reset(token)

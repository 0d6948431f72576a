"""Answers of our middleware and of the router, in the shape of OpenAI's errors."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from server.edge.errors import error_body

_POLICY_VIOLATION = 1008


async def refuse(
    scope: Scope, receive: Receive, send: Send, status: int, message: str, headers: Mapping[str, str] | None = None
) -> None:
    """Answer a request with an error. A websocket is not opened, and gets the error where its server can send it."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await WebSocketClose(_POLICY_VIOLATION, message)(scope, receive, send)
        return
    await _error(status, message, headers)(scope, receive, send)


async def shaped(_: Request, error: Exception) -> Response:
    """The answer to an error of the router: no such route, or another method. vLLM leaves these in another shape."""
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail, error.headers)


def _error(status: int, message: str, headers: Mapping[str, str] | None) -> Response:
    return Response(error_body(status, message), status, headers, media_type="application/json")

"""Answers of our middleware, in the shape of OpenAI's errors."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

_POLICY_VIOLATION = 1008
_TYPES = {401: "AuthenticationError", 403: "PermissionDeniedError", 404: "NotFoundError"}


async def refuse(
    scope: Scope, receive: Receive, send: Send, status: int, message: str, headers: Mapping[str, str] | None = None
) -> None:
    """Answer a request with an error. A websocket is not opened, and gets the error where its server can send it."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await WebSocketClose(_POLICY_VIOLATION, message)(scope, receive, send)
        return
    error = {"message": message, "type": _TYPES[status], "param": None, "code": status}
    await JSONResponse({"error": error}, status, headers)(scope, receive, send)

"""A refused request, and the answers of ours that are errors: all have the shape of OpenAI's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

# Reasons of refusals that are no setting of ``limits``.
OTHER_REASONS = ("json", "number", "shape", "transfer_params")
_POLICY_VIOLATION = 1008


@dataclasses.dataclass
class RequestRefused(Exception):
    """A request that never reaches vLLM.

    Attributes:
        status: of the answer.
        message: the rule, the value, and the setting that says so.
        reason: of the metric's label: a setting of ``limits``, or one of ``OTHER_REASONS``.
        param: the field of the body.
        retry_after: seconds after which the client may try again.
    """

    message: str
    reason: str
    status: int = HTTPStatus.BAD_REQUEST
    param: str | None = None
    retry_after: int | None = None

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the refusal."""
        headers = None if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        await _error(self.status, self.message, headers, self.param)(scope, receive, send)


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """An error in the shape of OpenAI's."""
    kind = "BadRequestError" if status == HTTPStatus.BAD_REQUEST else HTTPStatus(status).phrase
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": int(status)}}).encode()


async def refuse(
    scope: Scope, receive: Receive, send: Send, status: int, message: str, headers: Mapping[str, str] | None = None
) -> None:
    """Answer a request with an error. A websocket is not opened, and gets the error where its server can send it."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await WebSocketClose(_POLICY_VIOLATION, message)(scope, receive, send)
        return
    await _error(status, message, headers)(scope, receive, send)


async def shape_error(_: Request, error: Exception) -> Response:
    """The answer to an error of the router: no such route, or another method. vLLM leaves these in another shape."""
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail, error.headers)


def _error(status: int, message: str, headers: Mapping[str, str] | None, param: str | None = None) -> Response:
    return Response(error_body(status, message, param), status, headers, media_type="application/json")

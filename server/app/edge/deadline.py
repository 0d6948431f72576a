"""Ends an answer that takes too long.

The application is told that the client has left, which is what makes vLLM abort a request and free its blocks.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from server.app.edge.error_answers import RequestRefused, error_body

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_STREAM = b"text/event-stream"
# Servers that have this version of ASGI or a later one tell an application by an error of send that a client has left.
_ERRORS_OF_SEND = (2, 4)


async def run(app: ASGIApp, scope: Scope, receive: Receive, send: Send, seconds: float) -> bool:
    """Run an application, and end its answer after some seconds.

    Returns:
        Whether the answer was ended.
    """
    expired = asyncio.Event()
    started: Message | None = None
    is_complete = False

    async def receiving() -> Message:
        return await receive_until(expired, receive)

    async def sending(message: Message) -> None:
        nonlocal started, is_complete
        if not expired.is_set():
            if message["type"] == "http.response.start":
                started = message
            is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)
        elif _version(scope) >= _ERRORS_OF_SEND:
            raise OSError("the answer took too long")

    timer = asyncio.get_running_loop().call_later(seconds, expired.set)
    try:
        await app(scope, receiving, sending)
    except Exception:
        if not expired.is_set():
            raise
    finally:
        timer.cancel()
    if is_complete or not expired.is_set():
        return False
    await _end(scope, started, receive, send, seconds)
    return True


async def _end(scope: Scope, started: Message | None, receive: Receive, send: Send, seconds: float) -> None:
    why = f"the answer took longer than {seconds:g} s (limits.max_seconds)"
    if started is None:
        await RequestRefused(why, "max_seconds", status=HTTPStatus.GATEWAY_TIMEOUT).answer(scope, receive, send)
        return
    headers = {name.lower(): value for name, value in started["headers"]}
    if not headers.get(b"content-type", b"").startswith(_STREAM):
        raise TimeoutError(why)  # the server closes the connection, so that the client sees that something is missing
    await send({"type": "http.response.body", "body": _event(scope["path"], why)})


def _event(path: str, why: str) -> bytes:
    """The last event of a stream: an error, as the clients of the route know it."""
    error = json.loads(error_body(HTTPStatus.GATEWAY_TIMEOUT, why))
    if "/v1/messages" in path:  # Anthropic's
        return f"event: error\ndata: {json.dumps({'type': 'error', **error})}\n\n".encode()
    if "/v1/responses" in path:
        said = {"type": "error", "code": "timeout", "message": why, "param": None, "sequence_number": 0}
        return f"event: error\ndata: {json.dumps(said)}\n\n".encode()
    return f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n".encode()


def _version(scope: Scope) -> tuple[int, ...]:
    return tuple(map(int, scope["asgi"].get("spec_version", "2.0").split(".")))


async def receive_until(event: asyncio.Event, receive: Receive) -> Message:
    """The client's next message; once the event is set, one that says that the client has left."""
    message, end = asyncio.ensure_future(receive()), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([message, end], return_when=asyncio.FIRST_COMPLETED)
    finally:
        end.cancel()
        if not message.done():
            message.cancel()
    return {"type": "http.disconnect"} if event.is_set() else message.result()

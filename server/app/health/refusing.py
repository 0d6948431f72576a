"""Refuses new requests while a server drains, counts those under way, and refuses those that came too late to run."""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posenc_runtime.vllm_adapter.in_server.stopping import CUT, Draining
from server.app.edge.deadline import receive_until
from server.app.edge.error_answers import refuse
from server.app.edge.headers import with_security_headers

_READING = ("GET", "HEAD", "OPTIONS")
_PROBE = "/ping"
_REFUSAL = "the server is shutting down and takes no new requests: send this one to another server, or again later"
_RETRY = {"Retry-After": "10", "Connection": "close"}
_FAILED = HTTPStatus.INTERNAL_SERVER_ERROR


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
            await _refuse(scope, receive, send, _REFUSAL)
        else:
            with self._draining.call():
                await self._run(scope, receive, send)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a request that came before the drain.

        The engine stops when the drain is over. A request whose body is not complete by then cannot run any more. A
        request that the application answers with status 500 has missed the engine. Both get status 503.
        """
        over = self._draining.over
        is_complete = is_begun = is_late = False

        async def receiving() -> Message:
            nonlocal is_complete, is_late
            if is_complete:
                return await receive()
            message = await receive_until(over, receive)
            is_complete = not message.get("more_body", False)
            is_late = over.is_set()
            return message

        async def sending(message: Message) -> None:
            nonlocal is_begun, is_late
            if message["type"] == "http.response.start":
                is_late = is_late or (over.is_set() and message["status"] == _FAILED)
                is_begun = not is_late
                if self._draining.active and message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
                    retry = [(name.lower().encode(), value.encode()) for name, value in _RETRY.items()]
                    message["headers"] = [*message.get("headers", ()), *retry]
            if is_begun:
                await send(message)

        try:
            await self._app(scope, receiving, sending)
        except Exception:
            if is_begun or not over.is_set():
                raise
            is_late = True
        if is_late and not is_begun:
            await _refuse(scope, receive, send, CUT)


async def _refuse(scope: Scope, receive: Receive, send: Send, message: str) -> None:
    send = with_security_headers(send)
    await refuse(scope, receive, send, HTTPStatus.SERVICE_UNAVAILABLE, message, _RETRY)

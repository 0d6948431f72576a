"""The middleware that holds requests to the limits before vLLM parses them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from server.app.edge import body, deadline, parsing
from server.app.edge.access import KEY
from server.app.edge.concurrency import UnderWay
from server.app.edge.error_answers import RequestRefused
from server.app.edge.request_checks import sequences_asked
from server.app.edge.structure import Structure

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from posenc_runtime.vllm_adapter.in_server.engine_state import Capacity
    from posenc_runtime.vllm_adapter.settings.front_end import LimitSettings


_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
_FORMS = (b"multipart/form-data", b"application/x-www-form-urlencoded")


class LimitsMiddleware:
    """Pure ASGI middleware."""

    def __init__(
        self,
        app: ASGIApp,
        limits: LimitSettings,
        capacity: Callable[[], Capacity],
        refused: Callable[[str], None],
    ) -> None:
        """
        Args:
            capacity: what the engine has and may have.
            refused: called with the reason of each refusal.
        """
        self._app = app
        self._limits = limits
        self._capacity = capacity
        self._refused = refused
        self._under_way = UnderWay(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        try:
            with contextlib.suppress(body.ClientGone):
                await self._pass(scope, receive, send)
        except RequestRefused as refused:
            self._refused(refused.reason)
            await refused.answer(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self._limits
        with self._under_way.request(scope.get(KEY)), self._under_way.body() as heard:
            body.refuse_long(body.announced_size(scope), limits.max_body_bytes)
            if _content_type(scope).startswith(_FORMS):
                await self._run_form(scope, receive, send, heard)
                return
            structure = Structure(limits)

            def looked_at(piece: bytes) -> None:
                heard(piece)
                structure.feed(piece)

            text = await body.read(receive, limits.max_body_bytes, looked_at)
            structure.end()
            sequences = 0
            capacity = self._capacity()
            if text:
                parsed = parsing.parse(text)
                sequences = sequences_asked(parsed, limits, transfer_params=capacity.transfer_params)
                parsing.hand_over(scope, parsed)
                del parsed
                await asyncio.sleep(0)  # others first: vLLM's models look at the whole body at once
            with self._under_way.sequences(sequences, capacity.running, capacity.held):
                await self._run(scope, body.replay(text, receive), send)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._limits.max_seconds is None:
            await self._app(scope, receive, send)
        elif await deadline.run(self._app, scope, receive, send, self._limits.max_seconds):
            self._refused("max_seconds")

    async def _run_form(self, scope: Scope, receive: Receive, send: Send, heard: Callable[[bytes], None]) -> None:
        """Pass a form on as it arrives. What the application says of a form that is cut short is not sent."""
        refused: list[RequestRefused] = []
        size = 0

        async def receiving() -> Message:
            nonlocal size
            message = await receive()
            piece = message.get("body", b"")
            size += len(piece)
            try:
                body.refuse_long(size, self._limits.max_body_bytes)
                heard(piece)
            except RequestRefused as error:
                refused.append(error)
                return {"type": "http.disconnect"}
            return message

        async def sending(message: Message) -> None:
            if not refused:
                await send(message)

        try:
            await self._run(scope, receiving, sending)
        except Exception:
            if not refused:
                raise
        if refused:
            raise refused[0]


def _content_type(scope: Scope) -> bytes:
    return next((value.strip().lower() for name, value in scope["headers"] if name == b"content-type"), b"")

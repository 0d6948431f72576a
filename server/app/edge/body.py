"""Reads the body of a request up to a limit, and hands it on to the application."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from server.app.edge.error_answers import RequestRefused

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope


class ClientGone(Exception):
    """The client has closed the connection before its body was complete."""


def refuse_long(size: int, limit: int) -> None:
    """Check the size of a body, bytes.

    Raises:
        RequestRefused: when it is past the limit.
    """
    if size > limit:
        raise RequestRefused(
            f"the body may have {limit} bytes (limits.max_body_bytes), got {size} or more",
            reason="max_body_bytes",
            status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        )


def announced_size(scope: Scope) -> int:
    """What the header ``Content-Length`` says, bytes; 0 where there is none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


async def read(receive: Receive, limit: int, heard: Callable[[bytes], None]) -> bytes:
    """Read a whole body.

    Args:
        limit: bytes.
        heard: called with each piece as it arrives.

    Raises:
        RequestRefused: when it is longer than the limit.
        ClientGone: when the client leaves.
    """
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        size += len(piece)
        refuse_long(size, limit)
        heard(piece)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def replay(body: bytes, receive: Receive) -> Receive:
    """Give a body that has been read to the application, and then what else comes from the client."""
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replaying() -> Message:
        return given.pop() if given else await receive()

    return replaying

"""Headers that every answer has."""

from __future__ import annotations

from typing import Any

from starlette.types import Message, Send

# Browsers guess no content types, show no answer in a frame, and tell other servers nothing of ours.
_SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)


def with_security_headers(send: Send) -> Send:
    """Add the security headers that an answer does not have itself."""

    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            given = list(message.get("headers", ()))
            names = {name.lower() for name, _ in given}
            message["headers"] = [*given, *(header for header in _SECURITY if header[0] not in names)]
        await send(message)

    return sending


def hide_server(server: Any) -> None:
    """Leave out the header with the name of the HTTP server.

    Args:
        server: uvicorn's; it takes up the change within a second.
    """
    server.config.encoded_headers = [each for each in server.config.encoded_headers if each[0] != b"server"]

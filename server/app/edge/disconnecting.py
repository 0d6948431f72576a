"""Tells an application that its client has left, when it has not: the application then gives up the request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Message, Receive


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

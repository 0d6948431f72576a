"""Makes a request of a body, once, for us and for vLLM: two parsers could understand one text differently."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from fastapi import Request

from server.app.edge.error_answers import RequestRefused

_PARSED = "posenc_parsed"


def parse(body: bytes) -> Any:
    """What a JSON text says.

    It is JSON as the standard has it: in UTF-8, no NaN, no number past the range of a double, no lone surrogate. Where
    a key comes twice, the last one counts.

    Raises:
        RequestRefused: when it is not JSON.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # msgspec says of a lone surrogate only that something is missing.
        why = "a \\u escape is incomplete, or half of a surrogate pair" if "truncated" in str(error) else str(error)
        raise RequestRefused(f"the body must be JSON in UTF-8, got a text that is not: {why}", "json") from None


def hand_over(scope: Any, parsed: Any) -> None:
    """Have ``Request.json`` of the application return what we have parsed."""
    scope[_PARSED] = parsed


def use_what_is_parsed() -> None:
    """Wrap ``Request.json`` of Starlette, so that it does not parse again what ``hand_over`` gave."""
    stock = Request.json
    if hasattr(stock, "posenc"):
        return

    @functools.wraps(stock)
    async def json(self: Request) -> Any:
        if not hasattr(self, "_json") and _PARSED in self.scope:
            self._json = self.scope[_PARSED]
        return await stock(self)

    json.posenc = True  # type: ignore[attr-defined]
    Request.json = json  # type: ignore[method-assign, assignment]

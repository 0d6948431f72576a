"""The name that a client, or a proxy before us, gave to the request under way; our log of the request has it."""

from __future__ import annotations

from contextvars import ContextVar

# Of the header X-Request-Id. vLLM makes a request's own id of it, with a prefix and perhaps a suffix.
x_request_id: ContextVar[str | None] = ContextVar("x_request_id", default=None)

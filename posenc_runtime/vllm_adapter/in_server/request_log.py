"""One line for every request that has ended, refused and aborted ones too: its path and status, its lengths, its
scale, its crossings, and how long it took."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, Literal
from urllib.parse import quote

# Of the header X-Request-Id. vLLM makes a request's own id of it, with a prefix and perhaps a suffix.
x_request_id: ContextVar[str | None] = ContextVar("x_request_id", default=None)


Format = Literal["text", "json", "off"]

LOGGER = "vllm.posenc.requests"
logger = logging.getLogger(LOGGER)
_ASKING = ("GET", "HEAD", "OPTIONS")  # of data alone: probes, metrics, the page's own
_MOST_CHARACTERS = 100  # of a path


@dataclasses.dataclass
class Exchange:
    """A request over HTTP, of which the engine may get several.

    Attributes:
        status: of its answer; None before there is one.
        x_request_id: its name; None before it has one.
        running: how many of the engine's requests have not ended.
        entries: of those that have ended, and have no line yet.
        is_over: whether it has ended itself.
    """

    method: str
    path: str
    status: int | None = None
    x_request_id: str | None = None
    running: int = 0
    entries: list[Entry] = dataclasses.field(default_factory=list)
    is_over: bool = False


_exchange: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


@dataclasses.dataclass
class Entry:
    """What is known of a request at its end.

    Attributes:
        request_id: vLLM's; None of a request that never ran.
        x_request_id: the name that the client gave it, or that it was given; None where it did not come over HTTP.
        prompt_tokens, generation_tokens: tokens of its prompt, and of all its answers together.
        scale: the scale that it ended at; None where the engine did not say: of a request that was aborted, and where
            queries turn.
        turned_past: where queries turn, and the request has some that do: the trained length. None otherwise.
        crossings: its crossings, in the form that its answer has.
        finish_reason: of its first answer; None for a request that was aborted or never ran.
        seconds: from its arrival to its end.
        first_token_seconds: from its arrival to its first token; None where answers are not streamed.
        method, path, status: of HTTP; None where it did not come over HTTP, and the status where no answer was sent.
    """

    request_id: str | None
    x_request_id: str | None = None
    prompt_tokens: int = 0
    generation_tokens: int = 0
    scale: float | None = None
    turned_past: int | None = None
    crossings: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    seconds: float = 0.0
    first_token_seconds: float | None = None
    method: str | None = None
    path: str | None = None
    status: int | None = None

    def as_text(self) -> str:
        asked = "" if self.method is None else f"{self.method} {self.path} {self.status or '-'} "
        if self.request_id is None:
            return f"{asked}{self.x_request_id or '-'}: {self._how_it_ended()} after {self.seconds:.2f} s"
        ways = ", ".join(f"{each['how']} from {each['from']:g} at {each['at']} tokens" for each in self.crossings)
        how = "" if self.scale is None else f"scale {self.scale:g}{ways and f' ({ways})'}, "
        if self.turned_past is not None:
            how = f"queries turned past {self.turned_past}, "
        first = "" if self.first_token_seconds is None else f", first token after {self.first_token_seconds:.2f} s"
        return (
            f"{asked}{self.request_id}: {self.prompt_tokens} + {self.generation_tokens} tokens, {how}"
            f"{self.finish_reason or 'aborted'} after {self.seconds:.2f} s{first}"
        )

    def _how_it_ended(self) -> str:
        if self.status is None:
            return "aborted"
        return "answered" if self.status < 400 else "refused" if self.status < 500 else "failed"

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class RequestLinesMiddleware:
    """Pure ASGI middleware that writes the lines of each request over HTTP when its answer has been sent.

    Requests that ask for data alone have no line.

    Args:
        is_wanted: whether lines are written; asked at the end of each request.
    """

    def __init__(self, app: Any, log_format: Format, is_wanted: Callable[[], bool]) -> None:
        self._app, self._log_format, self._is_wanted = app, log_format, is_wanted

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] in _ASKING:
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope["method"], quote(scope["path"])[:_MOST_CHARACTERS])
        began = time.monotonic()

        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                names = [value for name, value in message.get("headers", ()) if name == b"x-request-id"]
                exchange.x_request_id = names[0].decode("latin-1") if names else None
            await send(message)

        token = _exchange.set(exchange)
        try:
            await self._app(scope, receive, noted)
        finally:
            _exchange.reset(token)
            exchange.is_over = True
            if self._is_wanted():
                if not exchange.entries and not exchange.running:
                    seconds = round(time.monotonic() - began, 6)
                    exchange.entries.append(Entry(None, exchange.x_request_id, seconds=seconds))
                for entry in exchange.entries:
                    _write(entry, exchange, self._log_format)


def log_requests(engine: Any, log_format: Format, turns_past: int | None = None) -> None:
    """Log a line at the end of every request of a running engine, for those over HTTP once their answer is sent.

    Args:
        engine: vLLM's client of it; its ``generate`` is wrapped.
        turns_past: the trained length, where queries past it turn; None where requests have scales.
    """
    if log_format == "off":
        return
    stock = engine.generate

    async def generate(
        prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        entry, began, exchange = Entry(request_id, x_request_id.get()), time.monotonic(), _exchange.get()
        if exchange is not None:
            exchange.running += 1
        try:
            async for output in stock(prompt, sampling_params, request_id, *args, **kwargs):
                _note(entry, output, sampling_params, began)
                yield output
        finally:
            if exchange is not None:
                exchange.running -= 1
            # One that never ran was refused; its answer says so, unless nobody is there to take it.
            if entry.prompt_tokens or (exchange is not None and exchange.is_over):
                entry.seconds = round(time.monotonic() - began, 6)
                # The last token is said, and nothing asks what follows it.
                if turns_past is not None and entry.prompt_tokens + entry.generation_tokens - 1 > turns_past:
                    entry.turned_past = turns_past
                if exchange is None or exchange.is_over:
                    _write(entry, exchange, log_format)
                else:
                    exchange.entries.append(entry)

    engine.generate = generate


def _write(entry: Entry, exchange: Exchange | None, log_format: Format) -> None:
    if exchange is not None:
        entry.method, entry.path, entry.status = exchange.method, exchange.path, exchange.status
    logger.info("%s", entry.as_json() if log_format == "json" else entry.as_text())


def _note(entry: Entry, output: Any, sampling_params: Any, began: float) -> None:
    tokens = sum(len(completion.token_ids) for completion in output.outputs)
    entry.prompt_tokens = len(output.prompt_token_ids or ())
    # By the request's output kind, a result has only the new tokens, or all tokens so far.
    is_delta = sampling_params.output_kind.name == "DELTA"
    entry.generation_tokens = entry.generation_tokens + tokens if is_delta else max(entry.generation_tokens, tokens)
    if entry.first_token_seconds is None and tokens and sampling_params.output_kind.name != "FINAL_ONLY":
        entry.first_token_seconds = round(time.monotonic() - began, 6)
    if output.finished:
        entry.finish_reason = output.outputs[0].finish_reason if output.outputs else None
        said = (output.kv_transfer_params or {}).get("posenc", {})
        entry.scale, entry.crossings = said.get("scale"), list(said.get("crossings", ()))

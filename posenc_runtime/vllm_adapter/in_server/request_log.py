"""One line for every request that has ended: its lengths, its scale, its crossings, and how long it took."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any, Literal

# Of the header X-Request-Id. vLLM makes a request's own id of it, with a prefix and perhaps a suffix.
x_request_id: ContextVar[str | None] = ContextVar("x_request_id", default=None)


Format = Literal["text", "json", "off"]

logger = logging.getLogger("vllm.posenc.requests")


@dataclasses.dataclass
class Entry:
    """What is known of a request at its end.

    Attributes:
        request_id: vLLM's.
        x_request_id: the name that the client gave it, or that it was given; None where it did not come over HTTP.
        prompt_tokens, generation_tokens: tokens of its prompt, and of all its answers together.
        scale: the scale that it ended at; None where the engine did not say: of a request that was aborted, and where
            queries turn.
        turned_past: where queries turn, and the request has some that do: the trained length. None otherwise.
        crossings: its crossings, in the form that its answer has.
        finish_reason: of its first answer; None for a request that was aborted.
        seconds: from its arrival to its end.
        first_token_seconds: from its arrival to its first token; None where answers are not streamed.
    """

    request_id: str
    x_request_id: str | None = None
    prompt_tokens: int = 0
    generation_tokens: int = 0
    scale: float | None = None
    turned_past: int | None = None
    crossings: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    seconds: float = 0.0
    first_token_seconds: float | None = None

    def as_text(self) -> str:
        ways = ", ".join(f"{each['how']} from {each['from']:g} at {each['at']} tokens" for each in self.crossings)
        how = "" if self.scale is None else f"scale {self.scale:g}{ways and f' ({ways})'}, "
        if self.turned_past is not None:
            how = f"queries turned past {self.turned_past}, "
        first = "" if self.first_token_seconds is None else f", first token after {self.first_token_seconds:.2f} s"
        return (
            f"{self.request_id}: {self.prompt_tokens} + {self.generation_tokens} tokens, {how}"
            f"{self.finish_reason or 'aborted'} after {self.seconds:.2f} s{first}"
        )

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def log_requests(engine: Any, log_format: Format, turns_past: int | None = None) -> None:
    """Log a line at the end of every request of a running engine.

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
        entry, began = Entry(request_id, x_request_id.get()), time.monotonic()
        try:
            async for output in stock(prompt, sampling_params, request_id, *args, **kwargs):
                _note(entry, output, sampling_params, began)
                yield output
        finally:
            if entry.prompt_tokens:  # a refused request never ran, and its client was told why
                entry.seconds = round(time.monotonic() - began, 6)
                # The last token is said, and nothing asks what follows it.
                if turns_past is not None and entry.prompt_tokens + entry.generation_tokens - 1 > turns_past:
                    entry.turned_past = turns_past
                logger.info("%s", entry.as_json() if log_format == "json" else entry.as_text())

    engine.generate = generate


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

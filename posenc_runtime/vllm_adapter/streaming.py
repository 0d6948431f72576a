"""The scale of a streamed answer, in its last chunk.

vLLM carries what the connector says at the end of a request in ``kv_transfer_params``, but only in answers that are
not streamed. The generators of its serving objects are wrapped: what comes in is watched, what goes out is held back
by one chunk.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

_DATA = "data: "
_DONE = "[DONE]"


def announce_scale_when_streaming(state: Any) -> None:
    """Wrap the serving objects of a built application.

    Args:
        state: ``app.state`` after ``init_app_state``.
    """
    chat, completion = state.openai_serving_chat, state.openai_serving_completion
    if chat is not None:
        chat.chat_completion_stream_generator = _wrapped(chat.chat_completion_stream_generator)
    if completion is not None:
        completion.completion_stream_generator = _wrapped(completion.completion_stream_generator)


def _wrapped(generator: Callable[..., AsyncIterator[str]]) -> Callable[..., AsyncIterator[str]]:
    async def announcing(*args: Any, **kwargs: Any) -> AsyncIterator[str]:
        position = next(index for index, argument in enumerate(args) if hasattr(argument, "__aiter__"))
        said: dict[str, Any] = {}
        watched = (*args[:position], _watched(args[position], said), *args[position + 1 :])
        held: str | None = None
        async for event in generator(*watched, **kwargs):
            if held is not None:
                yield _with_params(held, said) if event.startswith(_DATA + _DONE) else held
            held = event
        if held is not None:
            yield held

    return announcing


async def _watched(results: AsyncIterator[Any], said: dict[str, Any]) -> AsyncIterator[Any]:
    """Pass results on, noting what the connector said. Completions give (prompt index, output), chats the output."""
    async for result in results:
        output = result[1] if isinstance(result, tuple) else result
        if output.kv_transfer_params and not said:
            said.update(output.kv_transfer_params)
        yield result


def _with_params(event: str, said: dict[str, Any]) -> str:
    if not said or not event.startswith(_DATA + "{"):
        return event
    chunk = json.loads(event.removeprefix(_DATA))
    if "error" in chunk:
        return event
    return f"{_DATA}{json.dumps(chunk | {'kv_transfer_params': said}, ensure_ascii=False)}\n\n"

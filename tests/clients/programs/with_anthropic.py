"""Anthropic's client."""

from __future__ import annotations

from typing import Any

import anthropic
import asked
import told

client = anthropic.Anthropic(base_url=asked.ADDRESS, api_key=asked.KEY, max_retries=0)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


short: dict[str, Any] = {"model": asked.MODEL, "messages": user(asked.QUESTION), "max_tokens": asked.ANSWER_TOKENS}
long: dict[str, Any] = {
    "model": asked.MODEL,
    "messages": user(asked.LONG),
    "max_tokens": asked.LONG_TOKENS,
    "extra_body": {"ignore_eos": True},
}

with told.works("answer"):
    assert client.messages.create(**short).content[0].text == asked.ANSWER
with told.works("stream"), client.messages.stream(**short) as stream:
    assert "".join(stream.text_stream) == asked.ANSWER
with told.works("crossing"):
    answer = client.messages.create(**long)
    told.scale_at("an answer", 'answer.kv_transfer_params["posenc"]', answer=answer)
with told.works("streamed crossing"):
    *_, event, _stop = client.messages.create(**long, stream=True)
    assert event.type == "message_delta"
    told.scale_at("a stream", 'event.kv_transfer_params["posenc"]', event=event)
with told.refused("too long", anthropic.BadRequestError, 400, asked.LONGEST):
    client.messages.create(model=asked.MODEL, messages=user(asked.TOO_LONG), max_tokens=asked.ANSWER_TOKENS)
with told.refused("wrong key", anthropic.AuthenticationError, 401, asked.UNKNOWN_KEY):
    anthropic.Anthropic(base_url=asked.ADDRESS, api_key=asked.WRONG_KEY, max_retries=0).messages.create(**short)
with told.cancelled("stream.close()"):
    stream = client.messages.create(
        model=asked.MODEL,
        messages=user(asked.QUESTION),
        max_tokens=asked.CANCELLED_TOKENS,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for _ in range(asked.READ_PIECES):
        next(stream)
    stream.close()

with told.works("also `messages.count_tokens`"):
    assert client.messages.count_tokens(model=asked.MODEL, messages=user(asked.QUESTION)).input_tokens > 0
with told.works("also `messages.stream`"), client.messages.stream(**long) as stream:
    [event] = [each for each in stream if each.type == "message_delta"]
    assert event.model_dump()["kv_transfer_params"]["posenc"]["crossings"] == asked.CROSSINGS
    assert "admission_tokens" not in repr(stream.get_final_message()), "docs/clients.md says that it is dropped here"
with told.works("also `auth_token`"):
    bearer = anthropic.Anthropic(base_url=asked.ADDRESS, auth_token=asked.KEY, max_retries=0)
    assert bearer.messages.create(**short).content[0].text == asked.ANSWER

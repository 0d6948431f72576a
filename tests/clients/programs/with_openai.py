"""OpenAI's client for Python."""

from __future__ import annotations

import asyncio
from typing import Any

import asked
import openai
import told

BASE = f"{asked.ADDRESS}/v1"
client = openai.OpenAI(base_url=BASE, api_key=asked.KEY, max_retries=0)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


short: dict[str, Any] = {"model": asked.MODEL, "messages": user(asked.QUESTION), "max_tokens": asked.ANSWER_TOKENS}
long: dict[str, Any] = {"model": asked.MODEL, "messages": user(asked.LONG), "max_tokens": asked.LONG_TOKENS}
on: dict[str, Any] = {"extra_body": {"ignore_eos": True}}

with told.works("answer"):
    assert client.chat.completions.create(**short).choices[0].message.content == asked.ANSWER
with told.works("stream"):
    chunks = client.chat.completions.create(**short, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == asked.ANSWER
with told.works("crossing"):
    answer = client.chat.completions.create(**long, **on)
    told.scale_at("an answer", 'answer.kv_transfer_params["posenc"]', answer=answer)
with told.works("streamed crossing"):
    *_, chunk = client.chat.completions.create(**long, **on, stream=True)
    told.scale_at("a stream", 'chunk.kv_transfer_params["posenc"]', chunk=chunk)
with told.refused("too long", openai.BadRequestError, 400, asked.LONGEST):
    client.chat.completions.create(model=asked.MODEL, messages=user(asked.TOO_LONG))
with told.refused("wrong key", openai.AuthenticationError, 401, asked.UNKNOWN_KEY):
    openai.OpenAI(base_url=BASE, api_key=asked.WRONG_KEY, max_retries=0).chat.completions.create(**short)
with told.cancelled("stream.close()"):
    stream = client.completions.create(
        model=asked.MODEL, prompt=asked.QUESTION, max_tokens=asked.CANCELLED_TOKENS, stream=True, **on
    )
    for _ in range(asked.READ_PIECES):
        next(stream)
    stream.close()

with told.works("also `models.list`"):
    assert [model.id for model in client.models.list()] == [asked.MODEL]
with told.works("also `completions.create`"):
    completion = client.completions.create(
        model=asked.MODEL, prompt=asked.LONG, max_tokens=asked.LONG_TOKENS, **on
    ).model_dump()
    assert completion["kv_transfer_params"]["posenc"]["crossings"] == asked.CROSSINGS
with told.works("also `responses.create`"):
    response = client.responses.create(model=asked.MODEL, input=asked.QUESTION, max_output_tokens=asked.ANSWER_TOKENS)
    assert response.output_text == asked.ANSWER
    assert response.model_dump()["kv_transfer_params"]["posenc"]["scale"] == 1.0
with told.works("also `chat.completions.stream`"), client.chat.completions.stream(**short) as events:
    *_, last = (event.chunk for event in events if event.type == "chunk")
    assert last.model_dump()["kv_transfer_params"]["posenc"]["scale"] == 1.0
    assert "admission_tokens" not in repr(events.get_final_completion()), "docs/clients.md says that it is dropped here"


async def four_at_once() -> set[str | None]:
    async with openai.AsyncOpenAI(base_url=BASE, api_key=asked.KEY, max_retries=0) as client:
        answers = await asyncio.gather(*(client.chat.completions.create(**short) for _ in range(4)))
    return {each.choices[0].message.content for each in answers}


with told.works("also `AsyncOpenAI`"):
    assert asyncio.run(four_at_once()) == {asked.ANSWER}
with told.works("also `vllm_xargs`"):
    wish = {"ignore_eos": True, "vllm_xargs": {"posenc_on_crossing": "recompute"}}
    report = client.chat.completions.create(**long, extra_body=wish).model_dump()["kv_transfer_params"]["posenc"]
    assert [each["how"] for each in report["crossings"]] == ["recompute"]

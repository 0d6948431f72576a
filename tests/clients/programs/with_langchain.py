"""LangChain's models for OpenAI's API."""

from __future__ import annotations

from typing import Any

import asked
import openai
import told
from langchain_openai import ChatOpenAI, OpenAI

server: dict[str, Any] = {
    "model": asked.MODEL,
    "base_url": f"{asked.ADDRESS}/v1",
    "api_key": asked.KEY,
    "max_retries": 0,
}
short = ChatOpenAI(**server, max_tokens=asked.ANSWER_TOKENS)
long = ChatOpenAI(**server, max_tokens=asked.LONG_TOKENS, extra_body={"ignore_eos": True})

with told.works("answer"):
    assert short.invoke(asked.QUESTION).content == asked.ANSWER
with told.works("stream"):
    assert "".join(str(chunk.content) for chunk in short.stream(asked.QUESTION)) == asked.ANSWER
with told.works("crossing"):
    told.dropped("an answer", long.invoke(asked.LONG))
with told.works("streamed crossing"):
    told.dropped("a stream", list(long.stream(asked.LONG)))
with told.refused("too long", openai.BadRequestError, 400, asked.LONGEST):
    short.invoke(asked.TOO_LONG)
with told.refused("wrong key", openai.AuthenticationError, 401, asked.UNKNOWN_KEY):
    ChatOpenAI(**server | {"api_key": asked.WRONG_KEY}).invoke(asked.QUESTION)
with told.cancelled("stream.close()"):
    endless = ChatOpenAI(**server, max_tokens=asked.CANCELLED_TOKENS, extra_body={"ignore_eos": True})
    stream = endless.stream(asked.QUESTION)
    for _ in range(asked.READ_PIECES):
        next(stream)
    stream.close()

with told.works("also `batch`"):
    assert {each.content for each in short.batch([asked.QUESTION] * 4)} == {asked.ANSWER}
with told.works("also `OpenAI`"):
    completed = OpenAI(**server, max_tokens=asked.LONG_TOKENS, extra_body={"ignore_eos": True}).generate([asked.LONG])
    assert completed.llm_output["token_usage"]["completion_tokens"] == asked.LONG_TOKENS
with told.works("also `root_client`"):
    answer = short.root_client.chat.completions.create(
        model=asked.MODEL, messages=[{"role": "user", "content": asked.QUESTION}], max_tokens=asked.ANSWER_TOKENS
    )
    assert answer.kv_transfer_params["posenc"]["scale"] == 1.0

"""LiteLLM."""

from __future__ import annotations

from typing import Any

import asked
import litellm
import told

# As a provider, openai hands on what streams say; hosted_vllm does not.
server: dict[str, Any] = {"model": f"openai/{asked.MODEL}", "api_base": f"{asked.ADDRESS}/v1", "api_key": asked.KEY}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


short: dict[str, Any] = server | {"messages": user(asked.QUESTION), "max_tokens": asked.ANSWER_TOKENS}
long: dict[str, Any] = server | {
    "messages": user(asked.LONG),
    "max_tokens": asked.LONG_TOKENS,
    "extra_body": {"ignore_eos": True},
}

with told.works("answer"):
    assert litellm.completion(**short).choices[0].message.content == asked.ANSWER
with told.works("stream"):
    chunks = litellm.completion(**short, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == asked.ANSWER
with told.works("crossing"):
    answer = litellm.completion(**long)
    told.scale_at("an answer", 'answer.kv_transfer_params["posenc"]', answer=answer)
with told.works("streamed crossing"):
    chunks = list(litellm.completion(**long, stream=True))
    its = '[chunk for chunk in chunks if hasattr(chunk, "kv_transfer_params")][0].kv_transfer_params["posenc"]'
    told.scale_at("a stream", its, chunks=chunks)
with told.refused("too long", litellm.BadRequestError, 400, asked.LONGEST):
    litellm.completion(**server, messages=user(asked.TOO_LONG))
with told.refused("wrong key", litellm.AuthenticationError, 401, asked.UNKNOWN_KEY):
    litellm.completion(**short | {"api_key": asked.WRONG_KEY})
with told.cancelled("stream.close()"):
    stream = litellm.completion(
        **server,
        messages=user(asked.QUESTION),
        max_tokens=asked.CANCELLED_TOKENS,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for _ in range(asked.READ_PIECES):
        next(stream)
    stream.close()

hosted = long | {"model": f"hosted_vllm/{asked.MODEL}"}
with told.works("also `hosted_vllm/`"):
    assert litellm.completion(**hosted).kv_transfer_params["posenc"]["crossings"] == asked.CROSSINGS
    chunks = list(litellm.completion(**hosted, stream=True))
    assert "admission_tokens" not in repr(chunks), "docs/clients.md says that it is dropped here"
with told.works("also `text_completion`"):
    completed = litellm.text_completion(
        **server, prompt=asked.LONG, max_tokens=asked.LONG_TOKENS, extra_body={"ignore_eos": True}
    )
    assert completed.kv_transfer_params["posenc"]["crossings"] == asked.CROSSINGS

"""LlamaIndex's class for servers of OpenAI's API."""

from __future__ import annotations

import gc
from typing import Any

import asked
import openai
import told
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

server: dict[str, Any] = {
    "model": asked.MODEL,
    "api_base": f"{asked.ADDRESS}/v1",
    "api_key": asked.KEY,
    "max_retries": 0,
    "context_window": int(asked.LONGEST),
}
further: dict[str, Any] = {"additional_kwargs": {"extra_body": {"ignore_eos": True}}}
short = OpenAILike(**server, is_chat_model=True, max_tokens=asked.ANSWER_TOKENS)
long = OpenAILike(**server, **further, is_chat_model=True, max_tokens=asked.LONG_TOKENS)
question, filler = ([ChatMessage(role="user", content=text)] for text in (asked.QUESTION, asked.LONG))

with told.works("answer"):
    assert short.chat(question).message.content == asked.ANSWER
with told.works("stream"):
    assert "".join(piece.delta or "" for piece in short.stream_chat(question)) == asked.ANSWER
with told.works("crossing"):
    answer = long.chat(filler)
    told.scale_at("an answer", 'answer.raw.kv_transfer_params["posenc"]', answer=answer)
with told.works("streamed crossing"):
    *_, piece = long.stream_chat(filler)
    told.scale_at("a stream", 'piece.raw.kv_transfer_params["posenc"]', piece=piece)
with told.refused("too long", openai.BadRequestError, 400, asked.LONGEST):
    short.chat([ChatMessage(role="user", content=asked.TOO_LONG)])
with told.refused("wrong key", openai.AuthenticationError, 401, asked.UNKNOWN_KEY):
    OpenAILike(**server | {"api_key": asked.WRONG_KEY}, is_chat_model=True).chat(question)
# Closing the generator leaves OpenAI's stream in a circle of references, and its connection open.
with told.cancelled("stream.close(); gc.collect()"):
    endless = OpenAILike(**server, **further, is_chat_model=True, max_tokens=asked.CANCELLED_TOKENS)
    stream = endless.stream_chat(question)
    for _ in range(asked.READ_PIECES):
        next(stream)
    stream.close()
    gc.collect()

with told.works("also `complete`"):
    completing = OpenAILike(**server, **further, is_chat_model=False, max_tokens=asked.LONG_TOKENS)
    assert completing.complete(asked.LONG).raw.kv_transfer_params["posenc"]["crossings"] == asked.CROSSINGS

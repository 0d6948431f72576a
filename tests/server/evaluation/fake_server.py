"""A server of OpenAI's completions without a model: log probabilities follow a rule that tests know."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse


def by_position(position: int, token: int) -> float:
    """Ever less for later positions, and a little by token."""
    return -1.0 - position / 100 - token % 7 / 10


@dataclasses.dataclass
class Fake:
    """A server to be.

    Attributes:
        logprob: of a token at a position.
        window: past it, decoded tokens have ``past_window`` added to their log probabilities.
        says: the answer of a free request, from its prompt.
        forces: whether it can be told what to say.
        refuses_after: completions that it answers; later ones get status 500.
        requests: bodies of the completions and chats that it got.
    """

    logprob: Callable[[int, int], float] = by_position
    model: str = "fake"
    root: str | None = None
    max_model_len: int | None = 4096
    window: int = 64
    past_window: float = 0.0
    says: Callable[[Any], str] = lambda prompt: "an answer"
    forces: bool = True
    echoes: bool = True
    key: str | None = None
    refuses_after: int | None = None
    requests: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def app(self) -> FastAPI:
        app = FastAPI()
        app.middleware("http")(self._guarded)
        app.get("/v1/models")(self._models)
        app.post("/v1/completions")(self._complete)
        app.post("/v1/chat/completions")(self._chat)
        return app

    async def _guarded(self, request: Request, call: Any) -> Any:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "a key is wanted"}}, status_code=401)
        return await call(request)

    def _models(self) -> dict[str, Any]:
        return {"data": [{"id": self.model, "root": self.root, "max_model_len": self.max_model_len}]}

    async def _complete(self, request: Request) -> Any:
        body = await request.json()
        self.requests.append(body)
        if self.refuses_after is not None and len(self.requests) > self.refuses_after:
            return JSONResponse({"error": {"message": "out of order"}}, status_code=500)
        prompt, forced = body["prompt"], (body.get("vllm_xargs") or {}).get("forced_token_ids")
        if body.get("echo"):
            given = [None, *(self.logprob(position, prompt[position]) for position in range(1, len(prompt)))]
            logprobs = {"token_logprobs": [*given, -0.5]} if self.echoes else None
            return {"choices": [{"text": "", "logprobs": logprobs}]}
        if forced and self.forces:
            return self._forced(len(prompt), forced)
        ids = (forced or [0])[:1] * body["max_tokens"]  # as a model may by chance that says one token again and again
        return {"choices": [{"text": self.says(prompt), "token_ids": ids}]} | _posenc(1.0)

    def _forced(self, begin: int, forced: list[int]) -> dict[str, Any]:
        values = []
        for position, token in enumerate(forced, begin):
            values.append(self.logprob(position, token) + (self.past_window if position >= self.window else 0.0))
        crosses = begin < self.window < begin + len(forced)
        crossings = [{"at": self.window, "from": 1.0, "to": 2.0, "how": "rerotate"}] if crosses else []
        choice = {"text": "", "token_ids": forced, "logprobs": {"token_logprobs": values}}
        return {"choices": [choice]} | _posenc(2.0 if crosses else 1.0, crossings)

    async def _chat(self, request: Request) -> Any:
        body = await request.json()
        self.requests.append(body)
        return {"choices": [{"message": {"content": self.says(body["messages"][0]["content"])}}]}


def _posenc(scale: float, crossings: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"kv_transfer_params": {"posenc": {"scale": scale, "crossings": crossings or []}}}

"""Asks a server of OpenAI's API for log probabilities and answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from posenc_runtime.vllm_adapter.contract.errors import Failed
from posenc_runtime.vllm_adapter.contract.names import FORCED_TOKEN_IDS, FORCED_TOKENS
from server.evaluation import EvaluationRefused

if TYPE_CHECKING:
    import httpx

_CONNECT_SECONDS = 10.0


class AnswerFailed(Failed):
    """A server that was there refused a request, or broke off."""


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """What a server says that it serves.

    Attributes:
        root: the folder or the name that the model was loaded from; None where the server does not say.
        max_model_len: longest request, tokens; None where the server does not say.
    """

    name: str
    root: str | None
    max_model_len: int | None


@dataclasses.dataclass(frozen=True)
class Forced:
    """What a server said while it was told what to say.

    Attributes:
        logprobs: of each forced token, shape (forced tokens,).
        crossings: lengths at which the request crossed to another scale; empty for servers that do not say.
    """

    logprobs: list[float]
    crossings: list[int]


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer that a server gave freely.

    Attributes:
        scale: that it ended at; None for servers that do not say.
    """

    text: str
    scale: float | None


class Asker:
    """A client of one server.

    Args:
        target: its name in messages.
        address: without the ``/v1``.
        key: None where the server wants none.
    """

    def __init__(self, target: str, address: str, key: str | None, model: str = "") -> None:
        import httpx

        self.target, self.address, self.model = target, address, model
        self.takes_forced_tokens: bool | None = None  # not known before it was asked
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx.AsyncClient(
                base_url=address, headers=headers, timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS)
            )
        except (httpx.InvalidURL, UnicodeError) as error:
            raise EvaluationRefused(
                f"--target {target}: must be an address such as http://127.0.0.1:8000, got {address!r}: {error}"
            ) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def served(self) -> ServedModel:
        """What is served; of several models the first.

        Raises:
            EvaluationRefused: when no server of OpenAI's API answers.
        """
        import httpx

        try:
            answer = await self._http.get("/v1/models", timeout=30)
        except httpx.ConnectError:
            raise EvaluationRefused(f"--target {self.target}: no server answers at {self.address}: start it") from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise EvaluationRefused(f"--target {self.target}: {self.address} gives no answer: {reason}") from None
        if not answer.is_success:
            advice = "; give its key in OPENAI_API_KEY" if answer.status_code == 401 else ""
            raise EvaluationRefused(f"--target {self.target}: {self.address} answered with {_said(answer)}{advice}")
        try:
            found = answer.json()["data"][0]
            return ServedModel(found["id"], found.get("root"), found.get("max_model_len"))
        except (ValueError, LookupError, TypeError):
            raise EvaluationRefused(
                f"--target {self.target}: {self.address} is no server of OpenAI's API: /v1/models names no model"
            ) from None

    async def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        """The log probability of each token but the first, in one pass, shape (tokens - 1,).

        Raises:
            AnswerFailed: when the server does not give them.
        """
        answer = await self._complete({"prompt": list(ids), "max_tokens": 1, "echo": True, "logprobs": 0})
        found = (answer["choices"][0].get("logprobs") or {}).get("token_logprobs") or []
        values = [float(each) for each in found[1 : len(ids)] if each is not None]
        if len(values) != len(ids) - 1:
            raise AnswerFailed(
                f"{self.target} gave log probabilities of {len(values)} tokens of a prompt of {len(ids)}: it must "
                "serve /v1/completions with echo and logprobs, as vLLM and SGLang do"
            )
        return values

    async def forced_logprobs(self, prompt: Sequence[int], forced: Sequence[int]) -> Forced | None:
        """Decode a given text token by token through the KV cache.

        None where the server cannot be told what to say.

        Raises:
            AnswerFailed: when the server refuses the request.
        """
        if self.takes_forced_tokens is None:
            self.takes_forced_tokens = await self._says_what_it_is_told(prompt[:1])
        if not self.takes_forced_tokens:
            return None
        answer = await self._complete(
            {
                "prompt": list(prompt),
                "max_tokens": len(forced),
                "logprobs": 0,
                "ignore_eos": True,
                "return_token_ids": True,
                "vllm_xargs": {FORCED_TOKEN_IDS: list(forced)},
            }
        )
        choice = answer["choices"][0]
        if choice.get("token_ids") != list(forced):
            raise AnswerFailed(
                f"{self.target} said other tokens than it was told: start it with --logits-processors {FORCED_TOKENS} "
                "and without speculative decoding"
            )
        return Forced([float(each) for each in choice["logprobs"]["token_logprobs"]], _crossings(answer))

    async def answer(self, prompt: Sequence[int] | str, max_tokens: int, *, is_chat: bool = False) -> Answer:
        """A greedy answer.

        Args:
            prompt: token ids or a text; of a chat the user's message, a text.

        Raises:
            AnswerFailed: when the server refuses the request.
        """
        if is_chat:
            body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
            answer = await self._post("/v1/chat/completions", body)
            text = answer["choices"][0]["message"].get("content") or ""
        else:
            asked = prompt if isinstance(prompt, str) else list(prompt)
            answer = await self._complete({"prompt": asked, "max_tokens": max_tokens})
            text = answer["choices"][0]["text"]
        return Answer(text, _report(answer).get("scale"))

    async def _says_what_it_is_told(self, prompt: Sequence[int]) -> bool:
        # What a server says to one prompt by itself may be one of these, but not both.
        for told in ([0, 1], [1, 0]):
            body = {"prompt": list(prompt), "max_tokens": len(told), "ignore_eos": True, "return_token_ids": True}
            try:
                answer = await self._complete(body | {"vllm_xargs": {FORCED_TOKEN_IDS: told}})
            except AnswerFailed:
                return False  # a server that does not know these fields
            if answer["choices"][0].get("token_ids") != told:
                return False
        return True

    async def _complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._post("/v1/completions", body)

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        import httpx

        try:
            answer = await self._http.post(path, json={"model": self.model, "temperature": 0} | dict(body))
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise AnswerFailed(
                f"{self.target}: {self.address} broke off: {reason}; run the command again to go on"
            ) from None
        if not answer.is_success:
            raise AnswerFailed(f"{self.target}: {path} answered with {_said(answer)}")
        try:
            found: dict[str, Any] = answer.json()
            found["choices"][0]
        except (ValueError, LookupError, TypeError):
            raise AnswerFailed(f"{self.target}: {path} of {self.address} gave no choices") from None
        return found


def _report(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return (answer.get("kv_transfer_params") or {}).get("posenc") or {}


def _crossings(answer: Mapping[str, Any]) -> list[int]:
    return [int(each["at"]) for each in _report(answer).get("crossings", ())]


def _said(answer: httpx.Response) -> str:
    from server.client.client import error_message

    try:
        message = error_message(answer.json(), answer.text)
    except ValueError:
        message = answer.text
    return f"status {answer.status_code}: {message.strip().partition(chr(10))[0]}"

"""Talks to a server over HTTP, as any client of OpenAI's API does."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from posenc_runtime.vllm_adapter.contract.errors import Failed

if TYPE_CHECKING:
    import httpx
    from prometheus_client import Metric

ADDRESS = "http://127.0.0.1:8000"
_CONNECT_SECONDS = 5.0


class NoAnswer(Failed):
    """The server cannot be reached, or the connection to it broke."""


class BadAnswer(Failed):
    """The server answered with an error.

    Attributes:
        status: of HTTP; 200 where the error came in the middle of a stream.
        said: the server's own words.
    """

    def __init__(self, address: str, status: int, said: str) -> None:
        advice = "; give the key in OPENAI_API_KEY" if status == 401 else ""
        super().__init__(f"{address} answered with status {status}: {said}{advice}")
        self.status, self.said = status, said


@dataclasses.dataclass(frozen=True)
class Report:
    """What the server says of a request at its end.

    Attributes:
        scale: that the request ended at.
        rope_type: the deployment's method.
        tokens_past_trained: of the request; None where the method has scales.
        crossings: as in ``kv_transfer_params.posenc.crossings``.
        prompt_tokens, new_tokens: of the request.
        finish_reason: OpenAI's: ``length`` where the answer was cut.
        first_seconds, seconds: from the request to the first piece of the answer, and to its end.
    """

    scale: float | None
    crossings: Sequence[Mapping[str, Any]]
    prompt_tokens: int
    new_tokens: int
    rope_type: str = ""
    tokens_past_trained: int | None = None
    finish_reason: str | None = None
    first_seconds: float = 0.0
    seconds: float = 0.0


class Server:
    """A running server.

    Args:
        address: with or without the ``/v1`` at its end.
        key: None where the server wants none.
    """

    def __init__(self, address: str, key: str | None = None) -> None:
        import httpx

        self.address = address.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx.Client(
                base_url=self.address, headers=headers, timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS)
            )
        except (httpx.InvalidURL, UnicodeError) as error:
            raise NoAnswer(f"--url: must be an address such as {ADDRESS}, got {address!r}: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def model(self) -> str:
        """The name of the model that is served, of several the first.

        Raises:
            NoAnswer: when the server cannot be reached.
            BadAnswer: when it answers with an error.
        """
        found: str = self._json("/v1/models")["data"][0]["id"]
        return found

    def scales(self) -> dict[str, Any]:
        """What stands at ``/posenc/scales``.

        Raises:
            NoAnswer: when the server cannot be reached.
            BadAnswer: when it answers with an error.
        """
        found: dict[str, Any] = self._json("/posenc/scales")
        return found

    def metrics(self) -> list[Metric]:
        """What stands at ``/metrics``.

        Raises:
            NoAnswer: when the server cannot be reached.
            BadAnswer: when it answers with an error.
        """
        from prometheus_client.parser import text_string_to_metric_families

        with self._told():
            answer = self._http.get("/metrics", timeout=30)
            self._check(answer)
            return list(text_string_to_metric_families(answer.text))

    def chat(self, body: Mapping[str, Any]) -> Iterator[str | Report]:
        """Send a chat; gives the pieces of the answer, and at last the report.

        Raises:
            NoAnswer: when the server cannot be reached.
            BadAnswer: when it answers with an error.
        """
        return self._stream("/v1/chat/completions", body, lambda choice: choice["delta"].get("content") or "")

    def completion(self, body: Mapping[str, Any]) -> Iterator[str | Report]:
        """Send a completion, as ``chat``."""
        return self._stream("/v1/completions", body, lambda choice: choice["text"])

    def _stream(self, path: str, body: Mapping[str, Any], text: Any) -> Iterator[str | Report]:
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        said: dict[str, Any] = {}
        usage = {"prompt_tokens": 0, "completion_tokens": 0}
        finish_reason, begun, first = None, time.perf_counter(), 0.0
        with self._told(), self._http.stream("POST", path, json=asked) as answer:
            if not answer.is_success:
                answer.read()
            self._check(answer)
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise BadAnswer(self.address, answer.status_code, error_message(event, data))
                usage = event.get("usage") or usage
                said = (event.get("kv_transfer_params") or {}).get("posenc") or said
                for choice in event.get("choices", ()):
                    finish_reason = choice.get("finish_reason") or finish_reason
                    if piece := text(choice):
                        first = first or time.perf_counter() - begun
                        yield piece
        yield Report(
            scale=said.get("scale"),
            crossings=said.get("crossings", ()),
            prompt_tokens=usage["prompt_tokens"],
            new_tokens=usage["completion_tokens"],
            rope_type=said.get("rope_type", ""),
            tokens_past_trained=said.get("tokens_past_trained"),
            finish_reason=finish_reason,
            first_seconds=first,
            seconds=time.perf_counter() - begun,
        )

    def _json(self, path: str) -> Any:
        with self._told():
            answer = self._http.get(path, timeout=30)
            self._check(answer)
            return answer.json()

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        try:
            said = error_message(answer.json(), answer.text)
        except ValueError:
            said = answer.text.strip().partition("\n")[0]
        raise BadAnswer(self.address, answer.status_code, said or answer.reason_phrase)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.ConnectError:
            raise NoAnswer(
                f"no server answers at {self.address}: start one with `posenc serve`, or name another with --url"
            ) from None
        except httpx.UnsupportedProtocol:
            raise NoAnswer(f"--url: must be an address such as {ADDRESS}, got {self.address!r}") from None
        except httpx.HTTPError as error:
            raise NoAnswer(f"{self.address} broke off the connection: {error or type(error).__name__}") from None
        except (ValueError, KeyError, LookupError) as error:
            raise NoAnswer(f"{self.address} is no server of OpenAI's API: {type(error).__name__} {error}") from None


def error_message(body: Any, otherwise: str) -> str:
    """The message of an error in any of the forms that servers use."""
    found = body.get("error", body.get("detail")) if isinstance(body, dict) else None
    if isinstance(found, dict):
        found = found.get("message")
    return found if isinstance(found, str) else otherwise

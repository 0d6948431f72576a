"""vllm-router before two servers: answers keep what we say in them, and turns reach the engine that knows them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from posenc_runtime.zoo import evaluate
from tests.benchmarks.servers import Command, free_port, running
from tests.engine.device import on_the_cpu
from tests.engine.metrics import total
from tests.engine.running_server import running_server

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm_router") is None,
        reason="needs vllm-router: pip install --no-deps vllm-router==0.1.17 orjson setproctitle",
    ),
    on_the_cpu("two servers; nothing of a router depends on where they compute"),
]

TRAINED = 512  # the demo's, tokens
BLOCK = 32
SETTINGS: dict[str, Any] = {
    "model": str(evaluate.DEMO),
    "served_model_name": "demo",
    "scaling": {"rope_type": "yarn", "scales": [1, 2], "prefix_reuse": "continue"},
    "max_model_len": 2 * TRAINED,
    "engine": {
        **{"dtype": "float32", "enforce_eager": True, "block_size": BLOCK, "max_num_seqs": 4},
        **{"kv_cache_memory_bytes": 2**27},
    },
    "server": {"enable_prompt_tokens_details": True},
}
_MAIN = "from vllm_router.launch_router import main; main()"
WORDS = ("quick", "brown", "fox", "jumps", "over", "lazy", "dog", "while", "seven", "wizards", "boil", "cauldrons")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Addresses of two servers."""
    one_thread = {"OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(running_server(tmp_path_factory.mktemp(name), SETTINGS, one_thread, imported=True))
            for name in ("first", "second")
        ]


@contextlib.contextmanager
def routing(engines: list[str], policy: str) -> Iterator[httpx.Client]:
    """The router, by one of its policies."""
    router = (
        *(sys.executable, "-c", _MAIN, "--port", "{port}", "--policy", policy, "--worker-urls", *engines),
        *("--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1"),
    )
    with running(Command(router), start_seconds=30) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def router(engines: list[str]) -> Iterator[httpx.Client]:
    with routing(engines, "cache_aware") as client:
        yield client


def said_in_stream(text: str) -> dict[str, Any]:
    """What the last chunk of a stream says of scales."""
    *_, last, done = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert done == "[DONE]"
    said: dict[str, Any] = json.loads(last)["kv_transfer_params"]["posenc"]
    return said


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_answers_through_the_router_say_their_scale_and_crossings(route: str, router: httpx.Client) -> None:
    text = "a" * 200  # a token each
    asked = {"messages": [{"role": "user", "content": text}]} if "chat" in route else {"prompt": text}
    body = {"model": "demo", "max_tokens": TRAINED, "ignore_eos": True, "temperature": 0} | asked
    whole = router.post(route, json=body).raise_for_status().json()
    said = whole["kv_transfer_params"]["posenc"]
    assert said["crossings"] == [{"at": TRAINED, "from": 1.0, "to": 2.0, "how": "rerotate"}]
    assert (said["rope_type"], said["scale"]) == ("yarn", 2.0)
    streamed = router.post(route, json=body | {"stream": True}).raise_for_status()
    assert said_in_stream(streamed.text) == said


def test_the_router_passes_salts_and_refusals_on(router: httpx.Client, engines: list[str]) -> None:
    published = router.get("/posenc/scales").raise_for_status().json()
    assert published["scales"][1]["cache_salt_suffix"].startswith("~posenc:yarn:2:")
    ids = [number % 200 + 50 for number in range(TRAINED + 40)]
    body = {"model": "demo", "prompt": ids, "max_tokens": 4}
    salted = {"cache_salt": "tenant" + published["scales"][1]["cache_salt_suffix"]}
    hits = []
    for engine in engines:
        for asked in ({"cache_salt": "tenant"}, salted, {"cache_salt": "other"}):
            said = httpx.post(f"{engine}/v1/completions", json=body | asked, timeout=60).raise_for_status().json()
            hits.append(said["usage"]["prompt_tokens_details"]["cached_tokens"])
    cached = len(ids) // BLOCK * BLOCK
    assert hits == [0, cached, 0] * 2
    for asked in ({"cache_salt": "tenant"}, salted):
        said = router.post("/v1/completions", json=body | asked).raise_for_status().json()
        assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    refused = router.post("/v1/completions", json=body | {"cache_salt": "~posenc:mine"})
    assert refused.status_code == 400 and "choose another salt" in refused.json()["error"]["message"]


class Conversation:
    """Turns over the router; says which engine answered, and how many tokens of the prompt that had cached."""

    def __init__(self, client: httpx.Client, engines: list[str], name: str) -> None:
        self._client, self._engines, self._random = client, engines, random.Random(name)
        self._session = {"X-Session-Id": name}
        self._messages: list[dict[str, str]] = []
        self._computed = 0  # tokens that the engine has

    def begin(self) -> int:
        """Which engine answered."""
        engine, _ = self._said(num_words=60)
        return engine

    def turn(self) -> tuple[int, dict[str, Any]]:
        """Which engine answered, and what the answer says of its scale; what the engine had computed was found."""
        computed = self._computed
        engine, answer = self._said(num_words=20)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        # The answer's words may be other tokens in the prompt of the next turn.
        assert computed - BLOCK - 20 <= cached <= computed
        said: dict[str, Any] = answer["kv_transfer_params"]["posenc"]
        return engine, said

    def _said(self, num_words: int) -> tuple[int, dict[str, Any]]:
        before = [total(engine, "vllm:request_success_total") for engine in self._engines]
        self._messages.append({"role": "user", "content": " ".join(self._random.choices(WORDS, k=num_words))})
        body = {"model": "demo", "messages": self._messages, "max_tokens": 10, "temperature": 0}
        response = self._client.post("/v1/chat/completions", json=body, headers=self._session)
        answer: dict[str, Any] = response.raise_for_status().json()
        self._messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        self._computed = answer["usage"]["total_tokens"] - 1
        after = [total(engine, "vllm:request_success_total") for engine in self._engines]
        (engine,) = [number for number in range(2) if after[number] > before[number]]
        return engine, answer


def test_turns_of_a_session_reach_the_engine_that_has_the_turns_before(engines: list[str]) -> None:
    """Conversations on both engines take turns, and come to scale 2; their number is odd, so that taking the engines by
    turns would not do."""
    conversations: list[Conversation] = []
    begun: list[int] = []
    with routing(engines, "consistent_hash") as client:
        while len(begun) < 5 or set(begun) != {0, 1} or len(begun) % 2 == 0:
            conversations.append(Conversation(client, engines, f"session {len(begun)}"))
            begun.append(conversations[-1].begin())
            assert len(begun) < 50
        turns = [[conversation.turn() for conversation in conversations] for _ in range(8)]
    assert [[engine for engine, _ in of_all] for of_all in turns] == [begun] * len(turns)
    assert [said["scale"] for _, said in turns[-1]] == [2.0] * len(conversations)
    assert all(any(of_all[number][1]["crossings"] for of_all in turns) for number in range(len(conversations)))

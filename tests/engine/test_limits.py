"""Requests that nobody should send, to plain vLLM with one flag: none ends it, and each is told what is wrong."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.engine.metrics import metrics, total
from tests.engine.running_server import Server
from tests.fuzz.__main__ import GOOD, fuzz, good_answer
from tests.fuzz.attacks import ATTACKS
from tests.fuzz.bodies import SCHEMA, written
from tests.fuzz.processes import listening_at, resident_bytes

MIB = 2**20


@pytest.fixture(scope="module")
def server() -> Server:
    return "vllm"


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    return {
        "scaling": {"rope_type": "yarn", "scales": [1, 2, 4, 8], "headroom_tokens": 40},
        "limits": {"max_seconds": 5.0, "max_queued": 8},
        "engine": {
            **{"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**28},
            **{"max_num_seqs": 8},
        },
    }


@pytest.fixture(scope="module", autouse=True)
def warm(address: str) -> None:
    """The first request may take longer than the deadline."""
    httpx.post(f"{address}/v1/completions", json=GOOD, timeout=120)


@pytest.fixture(autouse=True)
def answers_as_before(address: str) -> Iterator[None]:
    """Whatever was sent, the next good request gets the same answer."""
    before = good_answer(address)
    yield
    assert good_answer(address) == before


def assert_refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text[:500]
    error: dict[str, Any] = answer.json()["error"]
    assert error["message"] and error["type"] and error["code"] == status
    return error


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_and_takes_no_memory(name: str, http: httpx.Client) -> None:
    pid = listening_at(http.base_url.port or 0)
    before = sum(resident_bytes(pid).values())
    route, body = ATTACKS[name]
    assert_refused(http.post(route, content=body, headers={"content-type": "application/json"}))
    assert sum(resident_bytes(pid).values()) - before < 100 * MIB


CHAT = [{"role": "user", "content": "a"}]
LONE = "\ud800"
ITSELF = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}

# What stock vLLM answers with status 500, or accepts and should not.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a lone surrogate in stop": ("completions", {"prompt": "a", "stop": [LONE]}),
    "a lone surrogate in bad_words": ("completions", {"prompt": "a", "bad_words": [LONE]}),
    "a lone surrogate in session_id": ("completions", {"prompt": "a", "session_id": LONE}),
    "a lone surrogate in request_id": ("completions", {"prompt": "a", "request_id": LONE}),
    "a lone surrogate in a key": ("chat/completions", {"messages": CHAT, "metadata": {LONE: "a"}}),
    "structured_outputs as a text": ("chat/completions", {"messages": CHAT, "structured_outputs": "text"}),
    "structured_outputs as a list": ("completions", {"prompt": "a", "structured_outputs": ["list"]}),
    "a pattern that is none": ("completions", {"prompt": "a", "structured_outputs": {"regex": "("}}),
    "a pattern of a schema that is none": (
        "completions",
        {"prompt": "a", "structured_outputs": {"json": {"type": "string", "pattern": "["}}},
    ),
    "a number that is none": ("completions", {"prompt": "a", "temperature": float("nan")}),
    "infinity": ("completions", {"prompt": "a", "repetition_penalty": float("inf")}),
    "a number past 64 bits": ("completions", {"prompt": "a", "seed": 2**64}),
    "parameters of a transfer": (
        "completions",
        {"prompt": "a", "kv_transfer_params": {"do_remote_prefill": True, "remote_prefill_cached_tokens": -7}},
    ),
    "an encoder's parameters": ("chat/completions", {"messages": CHAT, "ec_transfer_params": {"a": 1}}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_request_is_its_clients_to_hear(name: str, http: httpx.Client) -> None:
    route, body = REFUSED[name]
    admitted = total(str(http.base_url), "posenc_requests_total")
    content = written({"model": "tiny", "max_tokens": 2} | body)
    assert_refused(http.post(f"/v1/{route}", content=content, headers={"content-type": "application/json"}))
    assert total(str(http.base_url), "posenc_requests_total") == admitted


def test_a_constraint_that_no_allowed_token_fits_is_its_clients_fault(http: httpx.Client) -> None:
    constraint = {"structured_outputs": {"choice": ["a", "b"]}, "allowed_token_ids": [5]}
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2, **constraint}
    assert "no token of the model continues" in assert_refused(http.post("/v1/completions", json=body))["message"]
    streamed = http.post("/v1/completions", json=body | {"stream": True}).text
    assert "no token of the model continues" in streamed and '"code": 400' in streamed.replace('"code":4', '"code": 4')


def test_a_schema_that_refers_to_itself_is_answered_or_refused(http: httpx.Client) -> None:
    for schema in (ITSELF, {"$ref": "#"}, {"type": "object", "properties": {"a": {"$ref": "#"}}}):
        body = {"model": "tiny", "prompt": "a", "max_tokens": 2, "structured_outputs": {"json": schema}}
        assert http.post("/v1/completions", json=body).status_code in (200, 400)


def test_refusals_are_counted_by_their_reason(http: httpx.Client) -> None:
    def refused() -> float:
        return metrics(str(http.base_url))["posenc_refused_requests_total", (("reason", "max_n"),)]

    before = refused()
    error = assert_refused(http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "n": 500}))
    assert error["param"] == "n" and "limits.max_n" in error["message"]
    assert refused() == before + 1


def test_a_request_within_the_limits_is_answered_on_every_route(http: httpx.Client) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    for route, body in (
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "logprobs": 2, "seed": 2**63 - 1}),
        ("/v1/completions", {"prompt": [5] * 1500}),
        ("/v1/chat/completions", {"messages": CHAT * 100, "tools": tools, "tool_choice": "none"}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}] * 50}),
        ("/v1/messages", {"messages": CHAT}),
        ("/invocations", {"messages": CHAT}),
        ("/tokenize", {"messages": CHAT}),
    ):
        named = {} if route == "/tokenize" else {"max_output_tokens" if "responses" in route else "max_tokens": 2}
        answer = http.post(route, json={"model": "tiny"} | named | body)
        assert answer.status_code == 200, (route, answer.text)


LONG = {"model": "tiny", "prompt": "a", "max_tokens": 2000, "ignore_eos": True, "n": 8, "temperature": 1.0}


def test_a_full_queue_is_a_429_and_a_long_answer_ends_at_its_deadline(http: httpx.Client, address: str) -> None:
    seen: list[httpx.Response] = []

    def ask(stream: bool) -> None:
        seen.append(httpx.post(f"{address}/v1/completions", json=LONG | {"stream": stream}, timeout=60))

    threads = [threading.Thread(target=ask, args=[stream]) for stream in (False, True)]
    for thread in threads:
        thread.start()
        time.sleep(0.5)
    full = http.post("/v1/completions", json=LONG | {"max_tokens": 1})
    assert_refused(full, 429)
    assert full.headers["retry-after"] == "1" and "limits.max_queued" in full.text
    for thread in threads:
        thread.join()
    whole, streamed = sorted(seen, key=lambda answer: "event-stream" in answer.headers["content-type"])
    assert "limits.max_seconds" in assert_refused(whole, 504)["message"]
    *_, error, done = streamed.text.strip().split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 504 and done == "data: [DONE]"
    deadline = time.monotonic() + 20
    while total(address, "posenc_kv_blocks") or total(address, "vllm:num_requests_running"):
        assert time.monotonic() < deadline, "the blocks of a request past its deadline stay in use"
        time.sleep(0.2)


def test_openais_client_hears_of_a_stream_that_was_cut(client: openai.OpenAI) -> None:
    further = {"ignore_eos": True}
    asked = {name: value for name, value in LONG.items() if name not in further}
    chunks = client.completions.create(**asked, extra_body=further, stream=True)
    with pytest.raises(openai.APIError, match=r"limits\.max_seconds"):
        for _ in chunks:
            pass


def test_mutated_requests_get_no_5xx_and_the_server_stays_as_it_was(address: str) -> None:
    found = asyncio.run(fuzz(address, seed=1, count=300))
    at_the_deadline = [why for _, _, why in found.bad if "limits.max_seconds" in why]
    assert [each for each in found.bad if each[2] not in at_the_deadline] == []
    assert sum(found.statuses.values()) == 300 and found.statuses[200] > 30 and found.statuses[400] > 100
    assert found.last_bytes - found.first_bytes < 400 * MIB

"""The middleware, around a small application."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from posenc_runtime.vllm_adapter.in_server.engine_state import Capacity
from tests.fuzz.attacks import ATTACKS, nested
from tests.server.app.edge.application import Served

MIB = 2**20


def error_of(answer: httpx.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["code"] == status
    return error


async def test_a_request_within_the_limits_reaches_the_application_parsed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served()
    monkeypatch.setattr("starlette.requests.json", None)  # what would parse it again
    body = {"prompt": "a\ud83d\ude00", "max_tokens": 5, "deep": nested(90)}
    assert (await served.post(body)).json() == {"answered": "yes"}
    assert served.bodies == [json.loads(json.dumps(body))] and not served.refused


@pytest.mark.parametrize("name", [name for name in ATTACKS if "empty" not in name])
async def test_an_attack_is_refused_before_the_application_sees_it(name: str) -> None:
    served = Served()
    error_of(await served.post(ATTACKS[name][1]), 400)
    assert not served.bodies


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[1, 2]", b"null", b'"a"', b"{} {}", b"\xff", b"\xef\xbb\xbf{}", '{"a": 1}'.encode("utf-16")),
        *(b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": ' + b"1" * 10_000 + b"}", b'{"a": 01}'),
        *(
            b'{"a": "\\ud800"}',
            b'{"\\udfff": 1}',
            b'{"a": "\\ud800\\ud800"}',
            b'{"a": "\xed\xa0\x80"}',
            b'{"a": "\x01"}',
        ),
        *(b'{"seed": 18446744073709551616}', b'{"seed": -9223372036854775809}'),
    ],
)
async def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    served = Served()
    if text:
        error_of(await served.post(text), 400)
        assert served.refused in (["json"], ["number"])
    else:  # a route without a body is vLLM's to judge
        assert (await served.post(text)).status_code == 422
    assert not served.bodies


LIMITS: dict[str, tuple[dict[str, Any], str]] = {
    "max_messages": ({"messages": [{}] * 5001}, "messages"),
    "max_messages of an input": ({"input": ["a"] * 5001}, "input"),
    "max_messages of a conversation": ({"messages": [[{}], [{}] * 5001]}, "messages"),
    "max_content_parts": ({"messages": [{"content": [{}] * 8192}, {"content": [{}] * 8193}]}, "messages"),
    "max_content_parts of a conversation": ({"messages": [[{"content": [{}] * 16_385}]]}, "messages"),
    "max_content_parts of a tool's result": ({"messages": [{"content": [{"content": [{}] * 16_384}]}]}, "messages"),
    "max_prompts": ({"prompt": ["a"] * 1025}, "prompt"),
    "max_prompts of ids": ({"prompt": [[1]] * 1025}, "prompt"),
    "max_prompts of conversations": ({"messages": [[{}]] * 1025}, "messages"),
    "max_prompts of items": ({"items": ["a"] * 1025}, "items"),
    "max_prompt_tokens": ({"prompt": [1] * (2**20 + 1)}, "prompt"),
    "max_prompt_tokens of lists": ({"prompt": [[1] * 2**19] * 2 + [[1]]}, "prompt"),
    "max_prompt_tokens of ids": ({"token_ids": [1] * (2**20 + 1)}, "token_ids"),
    "max_n": ({"n": 129}, "n"),
    "max_n as a text": ({"n": "129"}, "n"),
    "max_n as a float": ({"n": 129.0}, "n"),
    "max_n of best_of": ({"best_of": 1e10}, "best_of"),
    "max_n of token ids": ({"sampling_params": {"n": 129}}, "sampling_params.n"),
    "max_sequences": ({"prompt": ["a"] * 100, "n": 11}, "n"),
    "max_sequences of beams": ({"prompt": ["a"] * 100, "best_of": 11}, "n"),
    "max_sequences of conversations": ({"messages": [[{}]] * 100, "n": 11}, "n"),
    "max_stop_strings": ({"stop": ["a"] * 257}, "stop"),
    "max_stop_strings of bad words": ({"sampling_params": {"bad_words": ["a"] * 257}}, "sampling_params.bad_words"),
    "max_constraint_bytes": ({"structured_outputs": {"regex": "a|" * 33_000}}, "structured_outputs"),
    "max_constraint_bytes of a schema": ({"response_format": {"s": {"e": ["x" * 99] * 700}}}, "response_format"),
    "max_constraint_bytes of tools": ({"tools": [{"d": "x" * 70_000}], "tool_choice": "required"}, "tools"),
    "max_list_items": ({"tools": [{}] * 4097}, "tools"),
    "max_name_length": ({"user": "u" * 1025}, "user"),
    "max_output_tokens": ({"max_completion_tokens": 101}, "max_completion_tokens"),
    "max_output_tokens as a text": ({"max_tokens": "1e3"}, "max_tokens"),
    "max_logprobs": ({"top_logprobs": 6}, "top_logprobs"),
}


@pytest.mark.parametrize("name", LIMITS)
async def test_a_request_past_a_limit_is_refused_with_the_field_and_the_setting(name: str) -> None:
    served = Served(max_output_tokens=100, max_logprobs=5)
    body, param = LIMITS[name]
    setting = name.split()[0]
    error = error_of(await served.post(body), 400)
    assert error["param"] == param and f"(limits.{setting})" in error["message"] and "got " in error["message"]
    assert served.refused == [setting] and not served.bodies


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["a"] * 1024},
        {"prompt": "a", "n": 128},
        {"prompt": [1] * 2**20},
        {"messages": [{"role": "user", "content": "a"}] * 5000},
        {"stop": "a" * 5000, "n": None, "logprobs": True, "max_tokens": None, "best_of": "many", "user": None},
        {"n": float("1.5"), "allowed_token_ids": list(range(200_000))},
        {"kv_transfer_params": None, "vllm_xargs": {"a": 1}, "text": "a", "tool_choice": {"type": "x"}},
        {"tools": [{"d": "x" * 70_000}], "tool_choice": "auto"},
    ],
    ids=range(8),
)
async def test_what_vllm_has_to_judge_is_passed_on(body: dict[str, Any]) -> None:
    served = Served()
    assert (await served.post(body)).status_code == 200
    assert served.bodies == [body]


@pytest.mark.parametrize(
    "body",
    [
        {"kv_transfer_params": {"remote_prefill_cached_tokens": -7}},
        {"ec_transfer_params": {}},
        {"vllm_xargs": {"kv_transfer_params": {"a": 1}}},
        {"sampling_params": {"extra_args": {"kv_transfer_params": {"a": 1}}}},
    ],
)
async def test_parameters_for_a_transfer_are_refused_where_no_connector_needs_them(body: dict[str, Any]) -> None:
    served = Served()
    assert "transfer_params must be left out" in error_of(await served.post(body), 400)["message"]
    assert served.refused == ["transfer_params"] and not served.bodies


async def test_a_body_past_the_limit_is_refused_by_its_header_or_by_its_bytes() -> None:
    served = Served(max_body_bytes=2000)
    assert (
        "2000 bytes (limits.max_body_bytes), got 2002"
        in error_of(await served.post(b" " * 2000 + b"{}"), 413)["message"]
    )

    async def pieces() -> Any:
        for _ in range(1000):
            yield b" " * 100

    async with served.client() as client:
        answer = await client.post("/v1/completions", content=pieces())
    error_of(answer, 413)
    assert served.refused == ["max_body_bytes"] * 2


@pytest.mark.parametrize("size", [100, 5000])
async def test_of_a_form_only_the_bytes_are_limited(size: int) -> None:
    served = Served(max_body_bytes=4000)
    async with served.client() as client:
        form = client.build_request("POST", "/upload", files={"file": b"[" * size})
        whole = form.read()

        async def pieces() -> Any:
            for start in range(0, len(whole), 512):
                yield whole[start : start + 512]

        answer = await client.post(form.url, content=pieces(), headers={"content-type": form.headers["content-type"]})
    if size < 4000:
        assert answer.json() == size
    else:
        error_of(answer, 413)


async def under_way(served: Served, bodies: list[Any], key: str | None = None) -> tuple[list[asyncio.Task[Any]], Any]:
    client = served.client(key)
    tasks = [asyncio.create_task(client.post("/wait", json=body)) for body in bodies]
    await asyncio.sleep(0.05)
    return tasks, client


async def test_requests_of_a_key_are_limited_and_those_of_another_are_not() -> None:
    served = Served(max_requests_per_key=2)
    tasks, client = await under_way(served, [{}] * 2, key="a")
    refused = await client.post("/wait", json={})
    error_of(refused, 429)
    assert refused.headers["retry-after"] == "1" and served.refused == ["max_requests_per_key"]
    others, _ = await under_way(served, [{}], key="b")
    served.release.set()
    assert [task.result().status_code for task in (await asyncio.wait([*tasks, *others]))[0]] == [200] * 3
    assert (await client.post("/wait", json={})).status_code == 200


async def test_sequences_that_would_wait_are_limited() -> None:
    served = Served(max_queued=4, capacity=Capacity(running=2))
    tasks, client = await under_way(served, [{"prompt": ["a", "b"]}, {"n": 3}])
    error_of(await client.post("/wait", json={"n": 2}), 429)
    last, _ = await under_way(served, [{"n": 1}])
    error_of(await client.post("/wait", json={}), 429)
    assert served.refused == ["max_queued"] * 2
    served.release.set()
    await asyncio.wait([*tasks, *last])


async def test_what_the_engine_still_has_counts_and_a_request_alone_is_never_refused() -> None:
    served = Served(max_queued=0, capacity=Capacity(running=2, held=2))
    error_of(await served.post({}), 429)
    served.capacity = Capacity(running=2)
    assert (await served.post({"n": 3})).status_code == 200


async def test_bodies_under_way_are_limited_together() -> None:
    served = Served(max_bytes_in_flight=3000)
    tasks, client = await under_way(served, [{"prompt": "a" * 2000}])
    error_of(await client.post("/wait", json={"prompt": "a" * 2000}), 429)
    served.release.set()
    await asyncio.wait(tasks)
    assert (await client.post("/wait", json={"prompt": "a" * 2000})).status_code == 200


async def test_an_answer_past_the_deadline_is_a_504_and_its_request_ends() -> None:
    served = Served(max_seconds=0.05)
    error = error_of(await served.post({}, "/wait"), 504)
    assert error["message"] == "the answer took longer than 0.05 s (limits.max_seconds)"
    assert served.left == 1 and served.refused == ["max_seconds"]


@pytest.mark.parametrize(
    ("route", "last"),
    [("/stream", "data: [DONE]"), ("/v1/messages", 'event: error\ndata: {"type": "error"')],
)
async def test_a_stream_past_the_deadline_says_so_and_its_request_ends(route: str, last: str) -> None:
    served = Served(max_seconds=0.1)
    answer = await served.post({}, route)
    assert answer.status_code == 200
    events = answer.text.strip().split("\n\n")
    assert events[0] == "data: {}" and events[-1].startswith(last)
    assert "longer than 0.1 s (limits.max_seconds)" in answer.text.split("data: {}")[-1]
    assert served.left == 1


async def test_an_answer_before_the_deadline_is_as_without_one() -> None:
    served = Served(max_seconds=20)
    assert (await served.post({"prompt": "a"})).json() == {"answered": "yes"}
    assert not served.refused

"""Crossings as clients of OpenAI's API see them, from plain vLLM with one flag."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import openai
import pytest

from tests.deploy.dashboard_queries import missing_from_exposition
from tests.engine.metrics import metrics, total
from tests.engine.running_server import Server

HEADROOM = 8


pytestmark = pytest.mark.promise("crossings over HTTP", "one flag")


@pytest.fixture(scope="module")
def server() -> Server:
    return "vllm"


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    return {
        "scaling": {
            "rope_type": "yarn",
            "scales": [1, 2, 4],
            "headroom_tokens": HEADROOM,
            "rerotate_budget_tokens": 32,  # one block a step, so that there is a middle of a crossing to end in
        },
        "engine": {"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**26},
    }


def test_a_response_lists_its_crossings_and_so_do_the_metrics(client: openai.OpenAI, address: str) -> None:
    answer = client.completions.create(
        model="tiny", prompt="a" * 200, max_tokens=400, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.model_dump()["kv_transfer_params"]["posenc"] == {
        "rope_type": "yarn",
        "scale": 4.0,
        "admission_tokens": 208,
        "crossings": [
            {"at": 256, "from": 1.0, "to": 2.0, "how": "rerotate"},
            {"at": 512, "from": 2.0, "to": 4.0, "how": "rerotate"},
        ],
    }
    seen = metrics(address)
    assert seen["posenc_crossings_total", (("from", "1"), ("how", "rerotate"), ("to", "2"))] >= 1
    assert seen["posenc_rerotated_tokens_total", ()] >= 256 + 512
    assert seen["posenc_crossing_wait_seconds_count", ()] >= 2
    assert seen["posenc_rerotate_seconds_count", ()] >= 24  # a block a step
    assert seen["posenc_rerotate_budget_tokens", ()] == 32
    scales = httpx.get(f"{address}/posenc/scales", timeout=60).json()
    assert scales["rerotate_budget_tokens"] == 32
    assert scales["rerotate_budget_reason"] == "set as scaling.rerotate_budget_tokens"
    exposed = httpx.get(f"{address}/metrics", timeout=60).text
    assert missing_from_exposition(exposed) == ["posenc_cope_saturation_ratio", "posenc_prefix_reused_tokens_total"]


def test_a_streamed_answer_lists_its_crossings_in_its_last_chunk(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model="tiny", prompt="b" * 240, max_tokens=30, stream=True, extra_body={"ignore_eos": True}
        )
    )
    said = [chunk.model_dump().get("kv_transfer_params") for chunk in chunks]
    assert [len(each["posenc"]["crossings"]) for each in said if each] == [1]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_answer_that_ends_at_a_stop_string_lists_its_crossings(stream: bool, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": "s" * 240, "max_tokens": 60, "seed": 1}
    full = client.completions.create(**asked, extra_body={"ignore_eos": True}).choices[0].text
    stop = next(full[at : at + 3] for at in range(30, 57) if full.find(full[at : at + 3]) == at)
    answer = client.completions.create(**asked, stop=stop, stream=stream, extra_body={"ignore_eos": True})
    *_, last = answer if stream else [answer]
    said = last.model_dump()["kv_transfer_params"]["posenc"]
    assert (said["scale"], [crossing["at"] for crossing in said["crossings"]]) == (2.0, [256])


@pytest.mark.parametrize(
    ("choice", "scale", "crossings"),
    [("pin", 2.0, []), ("recompute", 2.0, ["recompute"]), ("rerotate", 2.0, ["rerotate"])],
)
def test_a_request_may_choose_what_happens_when_it_outgrows_its_scale(
    choice: str, scale: float, crossings: list[str], client: openai.OpenAI
) -> None:
    answer = client.completions.create(
        model="tiny",
        prompt="c" * 240,
        max_tokens=40,
        extra_body={"ignore_eos": True, "vllm_xargs": {"posenc_on_crossing": choice}},
    )
    said = answer.model_dump()["kv_transfer_params"]["posenc"]
    assert said["scale"] == scale and [crossing["how"] for crossing in said["crossings"]] == crossings


def test_a_pinned_chat_that_does_not_say_how_long_gets_the_headroom(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        extra_body={"vllm_xargs": {"posenc_on_crossing": "pin"}},
    )
    assert answer.usage is not None and answer.usage.completion_tokens == HEADROOM
    assert answer.model_dump()["kv_transfer_params"]["posenc"]["scale"] == 1.0


@pytest.mark.parametrize("route", ["completions", "chat"])
def test_an_unknown_choice_is_refused_and_the_next_request_answered(route: str, client: openai.OpenAI) -> None:
    extra: dict[str, Any] = {"vllm_xargs": {"posenc_on_crossing": "hope"}}
    with pytest.raises(openai.BadRequestError) as caught:
        if route == "chat":
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=4, extra_body=extra
            )
        else:
            client.completions.create(model="tiny", prompt="hello", max_tokens=4, extra_body=extra)
    assert "posenc_on_crossing: on_crossing must be one of rerotate, recompute, pin, got 'hope'" in str(caught.value)
    answer = client.completions.create(model="tiny", prompt="hello", max_tokens=4, extra_body={"ignore_eos": True})
    assert answer.usage is not None and answer.usage.completion_tokens == 4


async def test_500_requests_that_end_around_a_crossing_leave_nothing_behind(address: str) -> None:
    source = random.Random(3)
    shared = "".join(source.choices("abcdef", k=96))
    gate = asyncio.Semaphore(16)

    async def one(http: httpx.AsyncClient) -> None:
        prompt = shared + "".join(source.choices("abcdef", k=154))  # 250: it crosses with its seventh token
        how = source.choice(("disconnect", "disconnect", "length"))
        tokens = source.randint(1, 24)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        async with gate:
            if how == "length":
                assert (await http.post("/v1/completions", json=body)).status_code == 200
                return
            body |= {"max_tokens": 300, "stream": True}
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                num_chunks = 0
                async for line in answer.aiter_lines():
                    num_chunks += line.startswith("data: ")
                    if num_chunks == tokens:
                        break  # and so hangs up

    async with httpx.AsyncClient(base_url=address, timeout=300) as http:
        await asyncio.gather(*(one(http) for _ in range(500)))
    for _ in range(100):
        if not total(address, "vllm:num_requests_running") and not total(address, "vllm:num_requests_waiting"):
            break
        await asyncio.sleep(0.1)
    # One more answer, so that the last report of levels has come through.
    httpx.post(f"{address}/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 2}, timeout=60)
    await asyncio.sleep(1)
    assert total(address, "vllm:kv_cache_usage_perc") == 0
    assert total(address, "posenc_kv_blocks") == 0

"""Our server, and plain vLLM with one flag, as clients of OpenAI's API see them."""

from __future__ import annotations

import contextlib
import json
import time
from http.client import HTTPConnection
from typing import Any

import httpx
import openai
import pytest

from posenc_runtime.vllm_adapter import releases
from tests.deploy.dashboard_queries import missing_from_exposition
from tests.engine.running_server import Server

HEADROOM = 40


OURS = pytest.param("posenc", marks=pytest.mark.promise("answers over HTTP"))


@pytest.fixture(scope="module", params=[OURS, "vllm"])
def server(request: pytest.FixtureRequest) -> Server:
    name: Server = request.param
    return name


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    return {
        "scaling": {"rope_type": "yarn", "scales": [1, 2, 4, 8], "headroom_tokens": HEADROOM, "on_crossing": "pin"},
        "engine": {"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**28},
    }


def posenc_of(answer: Any) -> dict[str, Any]:
    said: dict[str, Any] = answer.model_dump()["kv_transfer_params"]["posenc"]
    return said


def test_a_completion_says_the_scale_that_it_ran_at(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="a" * 600, max_tokens=8, temperature=0)
    assert posenc_of(answer) == {"rope_type": "yarn", "scale": 4.0, "admission_tokens": 608, "crossings": []}
    assert answer.usage is not None and answer.usage.completion_tokens == 8


@pytest.mark.parametrize("server", [OURS], indirect=True)
def test_a_connection_outlives_the_5_seconds_that_clients_keep_an_idle_one(address: str) -> None:
    # Were the server to close it first, the close would meet the client's next request and reset it.
    url = httpx.URL(address)
    connection = HTTPConnection(url.host, url.port, timeout=60)
    with contextlib.closing(connection):
        connection.connect()
        first = connection.sock
        for idle in (5.5, 0.0):
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ready"}'
            time.sleep(idle)
        assert connection.sock is first


def test_of_several_prompts_each_ones_scale_is_said(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["a" * 600, "b"], max_tokens=8)
    assert [each["scale"] for each in answer.model_dump()["kv_transfer_params"]["posenc_prompts"]] == [4.0, 1.0]


def test_n_answers_of_one_prompt_run_at_one_scale(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="a" * 300, max_tokens=8, n=3, temperature=1.0, seed=1)
    assert len(answer.choices) == 3 and posenc_of(answer)["scale"] == 2.0


def test_a_chat_that_does_not_say_how_long_gets_the_headroom_and_stays_unscaled(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello"}])
    assert posenc_of(answer)["scale"] == 1.0
    assert answer.usage is not None and answer.usage.completion_tokens == HEADROOM


def test_a_completion_that_does_not_say_how_long_gets_the_headroom(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="hello")
    assert answer.usage is not None and answer.usage.completion_tokens == HEADROOM
    assert posenc_of(answer)["admission_tokens"] == 5 + HEADROOM


def test_a_request_that_does_say_is_not_capped_by_the_headroom(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_completion_tokens=300, temperature=0
    )
    assert answer.usage is not None and answer.usage.completion_tokens == 300
    assert posenc_of(answer)["scale"] == 2.0


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_streamed_chat_says_the_scale_once_where_it_ends(client: openai.OpenAI, include_usage: bool) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "b" * 300}],
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True} if include_usage else openai.omit,
        )
    )
    # vLLM that says it by itself does so in the last chunk of the answer, and counts tokens in one more.
    says_it = (
        chunks[-1] if releases.STREAMS_WITHOUT_PARAMS.is_here else [chunk for chunk in chunks if chunk.choices][-1]
    )
    assert posenc_of(says_it)["scale"] == 2.0
    assert [chunk for chunk in chunks if chunk.model_dump().get("kv_transfer_params")] == [says_it]


def test_every_conversation_of_a_batch_says_its_scale(http: httpx.Client) -> None:
    messages = [
        [{"role": "user", "content": letter * length}] for letter, length in (("b", 300), ("c", 20), ("d", 700))
    ]
    answer = http.post("/v1/chat/completions/batch", json={"model": "tiny", "messages": messages, "max_tokens": 6})
    said = answer.json()["kv_transfer_params"]
    assert [prompt["scale"] for prompt in said["posenc_prompts"]] == [2.0, 1.0, 4.0]
    assert said["posenc"] == said["posenc_prompts"][0]


def test_a_message_of_anthropic_says_the_scale_streamed_or_not(http: httpx.Client) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "b" * 300}], "max_tokens": 6, "temperature": 0}
    whole = http.post("/v1/messages", json=asked).json()
    events = http.post("/v1/messages", json=asked | {"stream": True}).text.strip().split("\n\n")
    names = [event.partition("\n")[0].removeprefix("event: ") for event in events]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    last, end = (json.loads(event.partition("data: ")[2]) for event in events[-2:])
    assert last["kv_transfer_params"]["posenc"] == whole["kv_transfer_params"]["posenc"]
    assert whole["kv_transfer_params"]["posenc"]["scale"] == 2.0
    assert not any("kv_transfer_params" in event for event in (*events[:-2], end))


async def test_the_async_client_streams_the_tokens_that_the_whole_answer_has(address: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "tiny", "prompt": "c" * 520, "max_tokens": 12, "temperature": 0}
        whole = await client.completions.create(**asked)
        text = ""
        async for chunk in await client.completions.create(**asked, stream=True):
            text += "".join(choice.text for choice in chunk.choices)
            last = chunk
    assert text == whole.choices[0].text
    assert posenc_of(last) == posenc_of(whole)


def test_logprobs_stop_and_echo_are_vllms_own(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="d" * 20, max_tokens=4, logprobs=2, echo=True)
    assert answer.choices[0].logprobs is not None and answer.choices[0].text.startswith("d" * 20)
    assert answer.choices[0].logprobs.tokens is not None and len(answer.choices[0].logprobs.tokens) == 24
    full = client.completions.create(model="tiny", prompt="e", max_tokens=16, temperature=0).choices[0].text
    stop = full[3]
    stopped = client.completions.create(model="tiny", prompt="e", max_tokens=16, temperature=0, stop=stop)
    assert stopped.choices[0].finish_reason == "stop" and stopped.choices[0].text == full.partition(stop)[0]
    assert posenc_of(stopped) == {"rope_type": "yarn", "scale": 1.0, "admission_tokens": 17, "crossings": []}


def test_the_other_routes_answer(http: httpx.Client, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert http.get("/health").status_code == 200
    assert http.get("/version").json()["version"].startswith(releases.installed_version())
    assert http.post("/tokenize", json={"model": "tiny", "prompt": "hello"}).json()["count"] == 5
    scoring = {"model": "tiny", "query": "a", "items": ["b"], "label_token_ids": [5]}
    scored = http.post("/generative_scoring", json=scoring).raise_for_status().json()
    assert len(scored["data"]) == 1 and scored["kv_transfer_params"]["posenc"]["admission_tokens"] == 3


def test_the_scales_route_shows_configuration_and_live_state(http: httpx.Client, client: openai.OpenAI) -> None:
    before = http.get("/posenc/scales").json()
    assert before["rope_type"] == "yarn" and before["headroom_tokens"] == HEADROOM
    assert [scale["max_request_tokens"] for scale in before["scales"]] == [256, 512, 1024, 2048]
    assert (before["rerotate_budget_tokens"], before["rerotate_budget_reason"]) == (None, None)  # nothing is turned
    client.completions.create(model="tiny", prompt="f" * 1100, max_tokens=5)
    after = http.get("/posenc/scales").json()
    grown = {
        name: after["scales"][3]["live"][name] - before["scales"][3]["live"][name]
        for name in ("requests", "prompt_tokens", "generation_tokens")
    }
    assert grown == {"requests": 1, "prompt_tokens": 1100, "generation_tokens": 5}
    assert [scale["live"]["kv_blocks"] for scale in after["scales"]] == [0, 0, 0, 0]


def test_a_repeated_prompt_counts_as_a_prefix_hit_of_its_scale(http: httpx.Client, client: openai.OpenAI) -> None:
    def hits() -> int:
        found: int = http.get("/posenc/scales").json()["scales"][2]["live"]["prefix_hit_tokens"]
        return found

    before = hits()
    for _ in range(2):
        client.completions.create(model="tiny", prompt="g" * 700, max_tokens=5)
    assert hits() - before == 672  # 21 whole blocks of 32


def test_metrics_have_ours_beside_vllms_and_the_dashboard_finds_all_that_it_asks_for(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    assert "vllm:time_to_first_token_seconds_bucket" in text
    assert "posenc_strategy_info{" in text and 'scales="1,2,4,8"' in text
    # No layer has contextual positions; and the others have a series for each pair of scales that keys may go between:
    # none, where every request is pinned.
    assert missing_from_exposition(text) == [
        "posenc_cope_saturation_ratio",
        "posenc_crossings_total",
        "posenc_prefix_reused_tokens_total",
    ]


CHAT = [{"role": "user", "content": "hello"}]
BAD_REQUESTS = {
    "prompt-too-long": ("completions", {"prompt": "a" * 2049}),
    "negative-max-tokens": ("completions", {"prompt": "a", "max_tokens": -1}),
    "huge-max-tokens": ("completions", {"prompt": "a", "max_tokens": 10**9}),
    "max-tokens-as-text": ("completions", {"prompt": "a", "max_tokens": "many"}),
    "prompt-is-a-number": ("completions", {"prompt": 5}),
    "no-prompt": ("completions", {}),
    "empty-prompt": ("completions", {"prompt": ""}),
    "token-out-of-vocabulary": ("completions", {"prompt": [10**6]}),
    "negative-token": ("completions", {"prompt": [-5]}),
    "huge-logprobs": ("completions", {"prompt": "a", "logprobs": 10**4}),
    "negative-logprobs": ("completions", {"prompt": "a", "logprobs": -3}),
    "huge-n": ("completions", {"prompt": "a", "n": 10**6}),
    "zero-n": ("completions", {"prompt": "a", "n": 0}),
    "negative-temperature": ("completions", {"prompt": "a", "temperature": -1}),
    "top-p-above-1": ("completions", {"prompt": "a", "top_p": 1.5}),
    "unknown-model": ("completions", {"prompt": "a", "model": "other"}),
    "chat-without-messages": ("chat/completions", {}),
    "chat-message-is-text": ("chat/completions", {"messages": "hello"}),
    "chat-too-long": ("chat/completions", {"messages": [{"role": "user", "content": "a" * 4000}]}),
    "chat-negative-max-tokens": ("chat/completions", {"messages": CHAT, "max_tokens": -5}),
    "chat-logprobs-without-switch": ("chat/completions", {"messages": CHAT, "top_logprobs": 3}),
}


@pytest.mark.parametrize(("route", "body"), BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
def test_a_bad_request_gets_openais_error_shape_and_the_next_one_is_answered(
    route: str, body: dict[str, Any], http: httpx.Client, client: openai.OpenAI
) -> None:
    response = http.post(f"/v1/{route}", json={"model": "tiny"} | body)
    assert_refused(response)
    assert client.completions.create(model="tiny", prompt="a", max_tokens=1).choices


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        pytest.param(b"{broken", "application/json", id="broken-json"),
        pytest.param(b"[1, 2]", "application/json", id="not-an-object"),
        pytest.param(b"prompt=a", "application/x-www-form-urlencoded", id="a-form"),
        pytest.param(b"\xff\xfe", "application/json", id="not-text"),
    ],
)
def test_a_body_that_is_not_a_request_gets_openais_error_shape(
    content: bytes, content_type: str, http: httpx.Client, client: openai.OpenAI
) -> None:
    assert_refused(http.post("/v1/completions", content=content, headers={"Content-Type": content_type}))
    assert client.completions.create(model="tiny", prompt="a", max_tokens=1).choices


def test_an_answer_ends_at_the_served_length_whatever_was_asked_for(client: openai.OpenAI) -> None:
    try:
        answer = client.completions.create(model="tiny", prompt="a" * 2000, max_tokens=100)
    except openai.BadRequestError as refused:
        assert "maximum context length is 2048 tokens. However, you requested 100 output tokens" in str(refused)
        pytest.skip("this vLLM refuses to generate more than is left of max_model_len")
    assert answer.usage is not None and answer.usage.total_tokens == 2048
    assert posenc_of(answer)["admission_tokens"] == 2048


def test_a_client_that_names_a_regime_in_its_salt_is_refused(http: httpx.Client) -> None:
    salt = "~posenc:yarn:2:0123456789abcdef"
    assert_refused(http.post("/v1/completions", json={"model": "tiny", "prompt": "h", "cache_salt": salt}))


def assert_refused(response: httpx.Response) -> None:
    assert 400 <= response.status_code < 500, response.text
    error = response.json()["error"]
    assert error["message"] and error["type"] and error["code"] == response.status_code

"""Several answers to one request: each says its own scale, or all equal those of a deployment of one scale."""

from __future__ import annotations

import json
import math
import pathlib
from collections import defaultdict
from typing import Any

import httpx
import pytest

from tests.checkpoints import TRAINED
from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import run_engine
from tests.engine.running_server import Server
from tests.engine.several_answers import NUM_ANSWERS
from tests.engine.test_crossing import arguments
from tests.engine.transformers_oracle import Oracle
from tests.tolerance import LOGPROB_FLOAT32, LOGPROB_WRONG_SCALE

HEADROOM = 8


@pytest.fixture(scope="module")
def server() -> Server:
    return "posenc"


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    return {
        "scaling": {"rope_type": "yarn", "scales": [1, 2, 4], "headroom_tokens": HEADROOM},
        "engine": {"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**26},
    }


def asked_of(http: httpx.Client, route: str, body: dict[str, Any]) -> tuple[dict[int, int], Any, int]:
    """Tokens of each answer by its index, what is said of scales, and tokens of the prompt; whole or streamed."""
    body = {"model": "tiny", "return_token_ids": True, **body}
    num_tokens: dict[int, int] = defaultdict(int)
    if not body.get("stream"):
        response = http.post(route, json=body).raise_for_status().json()
        for choice in response["choices"]:
            num_tokens[choice["index"]] = len(choice["token_ids"])
        return num_tokens, response["kv_transfer_params"], response["usage"]["prompt_tokens"]
    body["stream_options"] = {"include_usage": True}
    said = prompt_tokens = None
    with http.stream("POST", route, json=body) as lines:
        for line in lines.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                said, usage = chunk.get("kv_transfer_params") or said, chunk.get("usage")
                prompt_tokens = usage["prompt_tokens"] if usage else prompt_tokens
                for choice in chunk["choices"]:
                    num_tokens[choice["index"]] += len(choice.get("token_ids") or ())
    assert prompt_tokens is not None
    return num_tokens, said, prompt_tokens


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_each_of_several_answers_says_its_own_crossings(route: str, stream: bool, http: httpx.Client) -> None:
    """They are drawn, and end where a letter comes: before the first boundary, and after it."""
    text = "t" * (TRAINED - 24)
    prompt = {"prompt": text} if route == "/v1/completions" else {"messages": [{"role": "user", "content": text[18:]}]}
    num_tokens, said, num_prompt_tokens = asked_of(
        http, route, {**prompt, "n": 8, "seed": 3, "max_tokens": 60, "stop": list("aeot"), "stream": stream}
    )
    reports = said["posenc_choices"]
    assert len(reports) == len(num_tokens) == 8
    for index, report in enumerate(reports):
        length = num_prompt_tokens + num_tokens[index]
        if abs(length - TRAINED) > 2:  # a request that a stop string ends may be a step ahead
            assert [each["at"] for each in report["crossings"]] == [TRAINED] * (length > TRAINED)
            assert report["scale"] == (2.0 if length > TRAINED else 1.0)
    assert {report["scale"] for report in reports} == {1.0, 2.0}
    assert said["posenc"] in reports


def test_beams_over_a_boundary_equal_those_of_its_larger_scale(
    http: httpx.Client, tiny: pathlib.Path, prompts: PromptMaker
) -> None:
    prompt = prompts(TRAINED - 6)
    asked = {"model": "tiny", "prompt": prompt, "use_beam_search": True, "n": 3, "max_tokens": 20, "logprobs": 1}
    asked |= {"ignore_eos": True, "temperature": 0, "return_token_ids": True}
    response = http.post("/v1/completions", json=asked).raise_for_status().json()
    answers = [(each["token_ids"], each["logprobs"]["token_logprobs"]) for each in response["choices"]]
    assert_beams_as(tiny, 2, prompt, answers)
    report = {"rope_type": "yarn", "scale": 2.0, "admission_tokens": TRAINED + 14, "crossings": []}
    assert response["kv_transfer_params"] == {"posenc": report, "posenc_choices": [report] * 3}


def assert_beams_as(
    model: pathlib.Path, scale: int, prompt: list[int], answers: list[tuple[list[int], list[float]]]
) -> None:
    """By their own search, and its log probabilities."""
    oracle, other = Oracle(model, "yarn", scale), Oracle(model, "yarn", 2 if scale == 1 else 1)
    assert [tokens for tokens, _ in answers] == oracle.beams(prompt, len(answers), len(answers[0][0]))
    for tokens, logprobs in answers:
        right, wrong = (each.score(prompt, tokens)[1] for each in (oracle, other))
        assert max(abs(a - b) for a, b in zip(logprobs, right, strict=True)) < LOGPROB_FLOAT32
        assert max(abs(a - b) for a, b in zip(logprobs, wrong, strict=True)) > LOGPROB_WRONG_SCALE


@pytest.mark.parametrize(
    ("items", "scale"), [((2, 5), 1), ((2, 12), 2)], ids=["all within the trained length", "one past it"]
)
def test_items_are_scored_at_the_scale_of_the_longest(
    items: tuple[int, ...], scale: int, http: httpx.Client, tiny: pathlib.Path, prompts: PromptMaker
) -> None:
    query, labels = prompts(TRAINED - 8), [7, 9]
    asked = {"model": "tiny", "query": query, "items": [prompts(length) for length in items], "label_token_ids": labels}
    response = http.post("/generative_scoring", json=asked | {"apply_softmax": False}).raise_for_status().json()
    oracle = Oracle(tiny, "yarn", scale)
    for item, scored in zip(asked["items"], response["data"], strict=True):
        right = oracle.score(query + item, labels[:1])[1][0]
        assert abs(math.log(scored["score"]) - right) < LOGPROB_FLOAT32
    said = response["kv_transfer_params"]["posenc"]
    assert (said["scale"], said["admission_tokens"], said["crossings"]) == (scale, TRAINED - 8 + max(items) + 1, [])


@pytest.mark.parametrize("route", ["/v1/completions", "/generative_scoring"])
def test_a_client_cannot_say_at_which_length_it_is_admitted(route: str, http: httpx.Client) -> None:
    body = {"prompt": "x"} if route == "/v1/completions" else {"query": [5], "items": [[6]], "label_token_ids": [7]}
    answer = http.post(route, json={"model": "tiny", **body, "vllm_xargs": {"posenc_admission_tokens": 4 * TRAINED}})
    assert answer.status_code == 400
    assert "posenc_admission_tokens" in answer.text


def test_beams_of_several_prompts_run_at_a_scale_for_each(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """With ``LLM``, whose search takes a step of all prompts at once."""
    drawn = [(prompts(TRAINED - 4), 8)]
    beams = [(prompts(length), 12) for length in (TRAINED - 6, 40, TRAINED - 20, 2 * TRAINED - 3)]
    module = "tests.engine.several_answers"
    _, found = run_engine(tiny, arguments("yarn"), [drawn, beams], module=module, folder=tmp_path)
    for number, ((prompt, _), scale) in enumerate(zip(beams, (2, 1, 1, 4), strict=True)):
        answers = found[number * NUM_ANSWERS : (number + 1) * NUM_ANSWERS]
        assert_beams_as(tiny, scale, prompt, [(answer.token_ids, answer.logprobs) for answer in answers])

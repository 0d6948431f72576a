"""Conversations that grow past the trained length, where queries turn: what is prefilled, and what an agent gains."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from posenc_runtime.zoo import evaluate
from tests.engine.compacting_agent import RESULT, Agent
from tests.engine.device import on_the_cpu
from tests.engine.running_server import running_server

pytestmark = on_the_cpu("pages are of 64 tokens here as well; what is prefilled follows from the scheduler")

TRAINED = 512  # the demo's, tokens
BLOCK = 32
TURNS, ANSWER = 12, 20
BEGIN, HEARD = TRAINED // 2, (4 * TRAINED - TRAINED // 2) // TURNS - ANSWER  # tokens: of the first turn, and of each
SETTINGS: dict[str, Any] = {
    "model": str(evaluate.DEMO),
    "served_model_name": "demo",
    "engine": {
        **{"dtype": "float32", "enforce_eager": True, "block_size": BLOCK, "max_num_seqs": 4},
        **{"kv_cache_memory_bytes": 2**28, "enable_prompt_tokens_details": True},
    },
}


def stock(longest: int) -> dict[str, Any]:
    overrides = f'{{"max_position_embeddings": {longest}}}'
    return {**SETTINGS, "engine": {**SETTINGS["engine"], "max_model_len": longest, "hf_overrides": overrides}}


def scaled(scaling: dict[str, Any]) -> dict[str, Any]:
    engine = {name: value for name, value in SETTINGS["engine"].items() if name != "enable_prompt_tokens_details"}
    server = {"enable_prompt_tokens_details": True}
    return {**SETTINGS, "engine": engine, "server": server, "scaling": scaling, "max_model_len": 4 * TRAINED}


@pytest.fixture(scope="module")
def turning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = scaled({"rope_type": "rerope"})
    with running_server(tmp_path_factory.mktemp("turning"), settings, imported=True) as address:
        yield address


def prefilled_in_each_turn(address: str) -> list[int]:
    """How many tokens each turn of a conversation has prefilled; each prompt has all turns before it."""
    prefilled = []
    with httpx.Client(base_url=address, timeout=300) as client:
        ids = (
            client.post("/tokenize", json={"model": "demo", "prompt": RESULT * 80}).raise_for_status().json()["tokens"]
        )
        history = ids[:BEGIN]
        for turn in range(TURNS):
            prompt = history + ids[BEGIN + turn * HEARD : BEGIN + (turn + 1) * HEARD]
            body = {"model": "demo", "prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True}
            response = client.post("/v1/completions", json=body | {"return_token_ids": True})
            said = response.raise_for_status().json()
            history = prompt + said["choices"][0]["token_ids"]
            prefilled.append(len(prompt) - said["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert 3.9 * TRAINED < len(history) <= 4 * TRAINED
    return prefilled


def prefilled_by_hand() -> list[int]:
    """What is new in each turn, where all that was computed is found again."""
    prompts = [BEGIN + HEARD + turn * (HEARD + ANSWER) for turn in range(TURNS)]
    # The last token of an answer is not computed, and only whole blocks are cached.
    cached = [0, *((prompt + ANSWER - 1) // BLOCK * BLOCK for prompt in prompts[:-1])]
    return [prompt - found for prompt, found in zip(prompts, cached, strict=True)]


def test_a_conversation_prefills_in_each_turn_what_stock_vllm_prefills(turning: str, tmp_path: pathlib.Path) -> None:
    by_hand = prefilled_by_hand()
    unlimited = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    with running_server(tmp_path, stock(4 * TRAINED), unlimited, server="vllm", imported=True) as address:
        assert prefilled_in_each_turn(address) == by_hand
    assert prefilled_in_each_turn(turning) == by_hand


def test_with_scales_a_conversation_that_goes_on_prefills_no_more(tmp_path: pathlib.Path) -> None:
    with running_server(
        tmp_path, scaled({"rope_type": "yarn", "scales": [1, 2, 4], "prefix_reuse": "continue"}), imported=True
    ) as address:
        assert prefilled_in_each_turn(address) == prefilled_by_hand()


def test_an_agent_that_compacts_at_the_trained_length_has_room_to_do_it(turning: str, tmp_path: pathlib.Path) -> None:
    with running_server(tmp_path, stock(TRAINED), server="vllm", imported=True) as address:
        agent = Agent(openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0), "demo", window=TRAINED)
        with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens"):
            agent.work(RESULT)
    agent = Agent(openai.OpenAI(base_url=f"{turning}/v1", api_key="none", max_retries=0), "demo", window=TRAINED)
    longest = agent.work(RESULT)
    assert longest > TRAINED
    assert agent.compacted == 1 and agent.used < TRAINED

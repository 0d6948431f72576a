"""What a request asks of its sampling holds after it has crossed.

Both rotations of the model are the same here, so that a crossing may change nothing: runners are told that a request
is resumed, or new, and would forget what they know of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.checkpoints import TRAINED, save_tiny
from tests.engine.conftest import PromptMaker
from tests.engine.device import environment
from tests.engine.greedy import alike
from tests.engine.running_server import running_server
from tests.tolerance import LOGPROB_AFTER_CROSSING

LONGEST = 8
FACTORS = [1.0 + 0.5 * pair for pair in range(16)]
ROTATION = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": TRAINED,
    "short_factor": FACTORS,
    "long_factor": FACTORS,
    "short_mscale": 1.0,
    "long_mscale": 1.0,
}
NEW_TOKENS = 30
CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "frequency penalty": {"frequency_penalty": 1.5},
    "a liking for what was said": {"frequency_penalty": -2.0},
    "presence penalty": {"presence_penalty": 2.0},
    "repetition penalty": {"repetition_penalty": 1.3},
    "at least so many tokens": {"min_tokens": 20, "stop_token_ids": list(range(0, 256, 3))},
    "bias": {"logit_bias": {"5": 3.0, "9": 2.5}},
    "bad words": {"bad_words": ["a", "b", "c", "d"]},
    "allowed tokens": {"allowed_token_ids": [3, 8, 50, 77, 100, 120]},
    "grammar": {"structured_outputs": {"regex": "[a-f]{12}[0-9]{30}"}},
    "grammar and seed": {"structured_outputs": {"regex": "[A-Z]{9}x[a-c]{40}"}, "temperature": 1, "seed": 9},
    "seed": {"temperature": 1, "seed": 3},
    "seed, few tokens": {"temperature": 0.8, "seed": 4, "top_k": 20, "top_p": 0.7, "min_p": 0.01},
    "seed and penalties": {"temperature": 1, "seed": 7, "frequency_penalty": 1.0, "presence_penalty": 0.5},
    "logprobs of the prompt": {"prompt_logprobs": 0},
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = save_tiny(
        tmp_path_factory.mktemp("phi"),
        "phi3",
        max_position_embeddings=LONGEST * TRAINED,
        rope_parameters=ROTATION,
        original_max_position_embeddings=TRAINED,
        sliding_window=None,
        hidden_size=128,
        num_key_value_heads=4,
    )
    settings = {
        "model": str(model),
        "served_model_name": "tiny",
        "scaling": {"rope_type": "longrope", "scales": [1, LONGEST], "headroom_tokens": 2},
        "engine": {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,
            "max_num_batched_tokens": 128,
            "kv_cache_memory_bytes": 2**26,
        },
    }
    with running_server(tmp_path_factory.mktemp("server"), settings, environment(), imported=True) as address:
        yield address


async def test_what_a_request_asks_of_its_sampling_holds_after_a_crossing(address: str, prompts: PromptMaker) -> None:
    asked = {case: (prompts(TRAINED - 10 + number % 9), wish) for number, (case, wish) in enumerate(CASES.items())}
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=300) as client:

        async def answer(prompt: list[int], wish: dict[str, Any], on_crossing: str) -> dict[str, Any]:
            completion = await client.completions.create(
                model="tiny",
                prompt=prompt,
                max_tokens=NEW_TOKENS,
                logprobs=0,
                extra_body={"temperature": 0, "ignore_eos": True, "return_token_ids": True}
                | wish
                | {"vllm_xargs": {"posenc_on_crossing": on_crossing}},
            )
            return completion.model_dump()

        for on_crossing in ("rerotate", "recompute"):
            crossing = [answer(*request, on_crossing) for request in asked.values()]
            pinned = [answer(*request, "pin") for request in asked.values()]
            answers = await asyncio.gather(*crossing, *pinned)
            for case, crossed, whole in zip(asked, answers[: len(asked)], answers[len(asked) :], strict=True):
                (one,), (other,) = crossed["choices"], whole["choices"]
                assert [event["how"] for event in posenc(crossed)["crossings"]] == [on_crossing], case
                assert posenc(whole)["crossings"] == [], case
                assert len(one["token_ids"]) >= 20, case
                assert alike(said(one), said(other)) and one["token_ids"] == other["token_ids"], (on_crossing, case)
                assert of_prompt(one) == pytest.approx(of_prompt(other), abs=LOGPROB_AFTER_CROSSING), case


def posenc(answer: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = answer["kv_transfer_params"]["posenc"]
    return described


def said(choice: dict[str, Any]) -> tuple[list[int], list[float]]:
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def of_prompt(choice: dict[str, Any]) -> list[float]:
    """The logprob of each token of the prompt behind the first, where it was asked for."""
    return [entry["logprob"] for token in (choice.get("prompt_logprobs") or [])[1:] for entry in token.values()]

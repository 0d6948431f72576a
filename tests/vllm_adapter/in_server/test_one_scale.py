"""Several requests of the engine that make one answer are admitted together, by vLLM's own routes and search."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator
from typing import Any

import pytest
from vllm import CompletionOutput, RequestOutput, SamplingParams
from vllm.entrypoints.generate.beam_search.online import BeamSearchOnlineMixin
from vllm.entrypoints.generate.generative_scoring.serving import (
    GenerativeScoringRequest,
    ServingGenerativeScoring,
)
from vllm.logprobs import Logprob
from vllm.sampling_params import BeamSearchParams

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_server.one_scale import ASK_SEVERAL, keep_at_one_scale

YARN = Deployment(
    rope_type="yarn",
    scales=(1.0, 2.0, 4.0),
    original_max_position_embeddings=64,
    max_model_len=256,
    headroom_tokens=16,
    on_crossing="rerotate",
)
ONE = Deployment(rope_type="default", original_max_position_embeddings=256, max_model_len=256)
TOLD = "posenc_admission_tokens"


class Engine:
    """Says two tokens to each request, and notes how long the request is and what it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int | None]] = []
        self.model_config = types.SimpleNamespace(get_vocab_size=lambda: 256, max_model_len=256)
        self.input_processor = types.SimpleNamespace(resolve_watermarking=lambda params: None)
        tokenizer = types.SimpleNamespace(eos_token_id=0, decode=lambda *_, **__: "")
        self.renderer = types.SimpleNamespace(tokenizer=tokenizer, get_tokenizer=lambda: tokenizer)
        self.errored = False

    def check_admission(self, number: int) -> None:
        pass

    async def generate(self, prompt: Any, params: Any, request_id: str, **kwargs: Any) -> AsyncIterator[RequestOutput]:
        token_ids = prompt["prompt_token_ids"]
        self.asked.append((len(token_ids), (params.extra_args or {}).get(TOLD)))
        await asyncio.sleep(0)
        said = [{token: Logprob(-float(token)) for token in (1, 2)}]
        answer = CompletionOutput(0, "", [1], -1.0, said, finish_reason="length")
        yield RequestOutput(request_id, None, token_ids, None, [answer], finished=True)


class Scoring(ServingGenerativeScoring):
    """vLLM's own, without models and adapters."""

    def __init__(self, engine: Engine) -> None:
        self.engine_client: Any = engine
        self.renderer: Any = engine.renderer
        self.model_config: Any = engine.model_config
        self.request_logger = None
        self.models: Any = types.SimpleNamespace(model_name=lambda adapter: "tiny")

    async def _check_model(self, request: Any) -> None:
        return None

    def _maybe_get_adapters(self, request: Any, **_: Any) -> None:
        return None


class Searching(BeamSearchOnlineMixin):
    def __init__(self, engine: Engine) -> None:
        self.engine_client: Any = engine
        self.renderer: Any = engine.renderer


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(BeamSearchOnlineMixin, "beam_search", BeamSearchOnlineMixin.beam_search)
    return Engine()


def kept(engine: Engine, deployment: Deployment = YARN, **servings: Any) -> None:
    keep_at_one_scale(engine, types.SimpleNamespace(**servings), deployment)


def of_two_items(**body: Any) -> GenerativeScoringRequest:
    return GenerativeScoringRequest(query=[5] * 60, items=[[6] * 2, [6] * 7], label_token_ids=[1, 2], **body)


async def search(engine: Engine, num_prompt_tokens: int, max_tokens: int) -> Any:
    prompt: Any = {"type": "token", "prompt_token_ids": [5] * num_prompt_tokens}
    params = BeamSearchParams(beam_width=2, max_tokens=max_tokens)
    (found,) = [result async for result in Searching(engine).beam_search(prompt, "beams", params)]
    return found


async def test_items_are_scored_at_the_scale_of_the_longest_and_the_answer_says_so(engine: Engine) -> None:
    scoring = Scoring(engine)
    kept(engine, serving_generative_scoring=scoring)
    response: Any = await scoring.create_generative_scoring(of_two_items())
    assert sorted(engine.asked) == [(62, 68), (67, 68)]
    report = {"rope_type": "yarn", "scale": 2.0, "admission_tokens": 68, "crossings": []}
    assert response.model_dump()["kv_transfer_params"] == {"posenc": report}


async def test_beams_are_as_long_as_they_may_become_from_their_first_token(engine: Engine) -> None:
    kept(engine)
    found = await search(engine, 60, 8)
    assert {told for _, told in engine.asked} == {68}
    assert {length for length, _ in engine.asked} == set(range(60, 68))
    report = {"rope_type": "yarn", "scale": 2.0, "admission_tokens": 68, "crossings": []}
    assert found.kv_transfer_params == {"posenc": report, "posenc_choices": [report, report]}


async def test_two_searches_at_once_know_nothing_of_each_other(engine: Engine) -> None:
    kept(engine)
    await asyncio.gather(search(engine, 20, 4), search(engine, 100, 4))
    assert {(length < 64, told) for length, told in engine.asked} == {(True, 24), (False, 104)}


async def test_requests_beside_a_search_are_told_nothing(engine: Engine) -> None:
    kept(engine)
    beside: dict[str, Any] = {"prompt_token_ids": [5] * 30}
    results = Searching(engine).beam_search(
        {"type": "token", "prompt_token_ids": [5] * 20}, "beams", BeamSearchParams(beam_width=2, max_tokens=4)
    )
    await anext(results)  # and goes on in this very context
    assert [one async for one in engine.generate(beside, SamplingParams(max_tokens=4), "beside")]
    assert engine.asked[-1] == (30, None)


async def test_where_there_is_one_scale_vllms_own_requests_are_sent(engine: Engine) -> None:
    scoring = Scoring(engine)
    kept(engine, ONE, serving_generative_scoring=scoring)
    response: Any = await scoring.create_generative_scoring(of_two_items())
    found = await search(engine, 60, 8)
    assert {told for _, told in engine.asked} == {None}
    assert "kv_transfer_params" not in response.model_dump() and found.kv_transfer_params is None


@pytest.mark.parametrize("name", [TOLD, "posenc_prefilled_scale"])
async def test_a_client_cannot_say_how_it_is_admitted(name: str, engine: Engine) -> None:
    kept(engine)
    params = SamplingParams(max_tokens=4, extra_args={name: 200})
    with pytest.raises(ValueError, match=f"extra_args.{name} must be left out"):
        await anext(aiter(engine.generate({"prompt_token_ids": [5]}, params, "forged")))
    assert not engine.asked


@pytest.mark.parametrize("name", ASK_SEVERAL)
@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({"vllm_xargs": {"posenc_on_crossing": "rerotate"}}, "posenc_on_crossing must be pin where /.* is asked"),
        ({"vllm_xargs": {TOLD: 5}}, f"only key of vllm_xargs that starts with posenc, got '{TOLD}'"),
        ({TOLD: 5}, f"no other key may start with posenc, got '{TOLD}'"),
        ({"cache_salt": "a~posenc:b"}, "cache_salt: must have '~posenc:' only at its end"),
    ],
)
async def test_what_such_a_route_does_not_offer_is_refused(
    name: str, body: dict[str, Any], rule: str, engine: Engine
) -> None:
    async def never(request: Any) -> Any:
        raise AssertionError("it must be refused")

    method, _ = ASK_SEVERAL[name]
    serving = types.SimpleNamespace(create_error_response=lambda error: str(error), **{method: never})
    kept(engine, **{name: serving})
    with pytest.raises(ValueError, match=rule):
        raise ValueError(await getattr(serving, method)(of_two_items(**body)))


async def test_a_prefix_that_is_computed_before_the_questions_is_as_long_as_they_are(engine: Engine) -> None:
    """vLLM 0.33 does so for models with recurrent layers."""

    class Strategy:
        async def _render(self, length: int) -> tuple[dict[str, Any], list[int]]:
            return {"prompt_token_ids": [5] * length}, [5] * length

    class Decisions:
        strategy = Strategy()

        async def create_decisions(self, request: Any) -> Any:
            rendered = [await self.strategy._render(length) for length in (70, 150)]
            for prompt in ({"prompt_token_ids": [5] * 40}, *(prompt for prompt, _ in rendered)):
                assert [one async for one in engine.generate(prompt, SamplingParams(max_tokens=1), "one")]
            return types.SimpleNamespace(kv_transfer_params=None)

    decisions = Decisions()
    kept(engine, openai_serving_decisions=decisions, serving_structured_decisions=None)
    response = await decisions.create_decisions(of_two_items())
    assert engine.asked == [(40, 151), (70, 151), (150, 151)]
    assert response.kv_transfer_params["posenc"]["scale"] == 4.0


async def test_a_longer_request_after_others_have_begun_fails_the_answer(engine: Engine) -> None:
    """Rather than to mix scales."""

    class Decisions:
        async def create_decisions(self, request: Any) -> Any:
            for length in (40, 70):
                prompt = {"prompt_token_ids": [5] * length}
                assert [one async for one in engine.generate(prompt, SamplingParams(max_tokens=1), "one")]

    decisions = Decisions()
    kept(engine, openai_serving_decisions=decisions)
    with pytest.raises(RuntimeError, match="one of 71 tokens came after they were admitted for 41"):
        await decisions.create_decisions(of_two_items())

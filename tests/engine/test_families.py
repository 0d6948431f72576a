"""Each kind of model: unscaled as stock vLLM, scaled as static deployments, and across lengths as turned keys say."""

from __future__ import annotations

import pytest

from tests.engine import family_runs
from tests.engine.families_oracle import SCALES, FamilyOracle
from tests.engine.family_runs import HEADROOM, Ran, Request
from tests.engine.run_engine import Answer
from tests.tolerance import LOGPROB_AFTER_CROSSING

FAMILIES = ("gemma3", "gemma3n", "gpt_oss", "gemma2", "mistral_0.1", "cohere2", "exaone4", "lfm2")
WITH_EACH_SCALE = ("gemma3", "gpt_oss")  # the others are compared with the largest one alone


@pytest.fixture(scope="module", params=FAMILIES)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return family_runs.run(request.param, tmp_path_factory.mktemp(request.param))


def test_unscaled_requests_are_those_of_stock_vllm_to_the_bit(ran: Ran) -> None:
    theirs = family_runs.stock(ran)
    assert [answer.posenc and answer.posenc["scale"] for answer in ran.unscaled] == [1] * len(theirs)
    assert [answer.token_ids for answer in ran.unscaled] == [answer.token_ids for answer in theirs]
    assert [answer.logprobs for answer in ran.unscaled] == [answer.logprobs for answer in theirs]


def test_requests_of_a_mixed_batch_are_those_of_static_deployments_to_the_bit(ran: Ran) -> None:
    for scale in SCALES[1:] if ran.name in WITH_EACH_SCALE else SCALES[-1:]:
        theirs = family_runs.static(ran, scale)
        of_scale = [index for index, each in enumerate(ran.asked.scales) if each == scale]
        ours = [ran.mixed[index] for index in of_scale]
        assert [answer.posenc and (answer.posenc["scale"], answer.posenc["crossings"]) for answer in ours] == [
            (scale, [])
        ] * len(of_scale)
        assert [answer.token_ids for answer in ours] == [theirs[index].token_ids for index in of_scale]
        assert [answer.logprobs for answer in ours] == [theirs[index].logprobs for index in of_scale]


def test_requests_answer_as_transformers_does_with_keys_turned_at_crossings(ran: Ran) -> None:
    oracle = FamilyOracle(ran.name)
    assert_answers_as(oracle, ran.asked.mixed, ran.mixed)
    for how, requests in ran.asked.crossing.items():
        assert_answers_as(oracle, requests, ran.crossing[how])
    assert any(answer.num_cached_tokens for answer in ran.crossing["from the prefix cache"])
    assert ran.preemptions >= 3


def assert_answers_as(oracle: FamilyOracle, requests: list[Request], answers: list[Answer]) -> None:
    for (prompt, max_tokens), answer in zip(requests, answers, strict=True):
        first = oracle.first_scale(len(prompt) + min(max_tokens, HEADROOM))
        greedy, logprobs = oracle.score(prompt, answer.token_ids, first)
        assert answer.token_ids == greedy
        assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_AFTER_CROSSING
        path = oracle.path(first, len(prompt) + max_tokens - 1)  # the last token is never computed
        assert answer.posenc is not None
        assert answer.posenc["crossings"] == [
            {"at": position, "from": path[position - 1], "to": path[position], "how": "rerotate"}
            for position in range(1, len(path))
            if path[position] != path[position - 1]
        ]

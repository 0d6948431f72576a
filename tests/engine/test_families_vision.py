"""Models that see: text crosses as everywhere, a picture as well, unless its positions have axes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.engine import family_checks, family_runs
from tests.engine.family_runs import Ran
from tests.engine.run_engine import run_engine
from tests.families.family import Picture
from tests.tolerance import LOGPROB_AFTER_CROSSING, LOGPROB_FLOAT32

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "glm4v", "llava", "internvl", "llama4_sees")


@pytest.fixture(scope="module", params=FAMILIES)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return family_runs.run(request.param, tmp_path_factory.mktemp(request.param))


def test_unscaled_requests_are_those_of_stock_vllm_to_the_bit(ran: Ran) -> None:
    family_checks.assert_unscaled_requests_are_stock_vllms_to_the_bit(ran)


def test_requests_of_a_mixed_batch_are_those_of_a_static_deployment_to_the_bit(ran: Ran) -> None:
    family_checks.assert_a_mixed_batch_is_that_of_static_deployments(ran)


def test_requests_that_cross_answer_as_transformers_does_with_keys_turned(ran: Ran) -> None:
    family_checks.assert_answers_are_transformers_with_keys_turned_at_crossings(ran)


def test_without_its_tower_a_model_answers_text_as_with_it(ran: Ran) -> None:
    """vLLM's ``--language-model-only``."""
    arguments = family_runs.scaling(ran) | {"language_model_only": True}
    (alone,) = run_engine(ran.model, arguments, [ran.asked.crossing["alone"]], folder=ran.folder)
    family_checks.assert_equal(alone, ran.crossing["alone"])
    assert [answer.posenc for answer in alone] == [answer.posenc for answer in ran.crossing["alone"]]


def test_a_request_with_a_picture_says_how_it_crossed(ran: Ran) -> None:
    picture, text, short = ran.pictures
    at_trained = {"at": ran.family.trained, "from": 1, "to": 2}
    assert picture.posenc and picture.posenc["crossings"] == [at_trained | {"how": _crosses_by(ran)}]
    assert text.posenc and text.posenc["crossings"] == [at_trained | {"how": "rerotate"}]
    assert short.posenc and short.posenc["crossings"] == []


def test_a_picture_that_crossed_is_as_one_that_ran_there_or_as_one_turned_by_torch(ran: Ran) -> None:
    (request,), (alone,) = ran.asked.pictures[:1], ran.picture_alone
    family_checks.assert_equal(ran.pictures[:1], [alone], LOGPROB_FLOAT32)
    if _crosses_by(ran) == "rerotate":
        turned = family_runs.turned_in_float64(ran, {"alone": [request]})
        family_checks.assert_equal([alone], turned["alone"], LOGPROB_AFTER_CROSSING)
        return
    prompt, max_tokens = request
    before = ran.family.trained - _num_tokens(ran, prompt) + 1  # said before it crossed
    begun = prompt | {"token_ids": prompt["token_ids"] + alone.token_ids[:before]}
    (theirs,) = family_runs.static(ran, 2, [(begun, max_tokens - before)])
    rest = dataclasses.replace(alone, token_ids=alone.token_ids[before:], logprobs=alone.logprobs[before:])
    family_checks.assert_equal([rest], [theirs], LOGPROB_FLOAT32)


def _crosses_by(ran: Ran) -> str:
    """How a request with a picture crosses."""
    return "recompute" if _picture(ran).has_axes else "rerotate"


def _num_tokens(ran: Ran, prompt: dict[str, Any]) -> int:
    """Of a prompt, when its picture has taken the place of the placeholder."""
    return len(prompt["token_ids"]) - 1 + _picture(ran).num_tokens


def _picture(ran: Ran) -> Picture:
    assert ran.family.picture
    return ran.family.picture

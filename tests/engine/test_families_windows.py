"""Models of which some layers have a window, a rotation of their own, or none."""

from __future__ import annotations

import pathlib

import pytest

from tests.engine import family_checks, family_runs
from tests.engine.families_oracle import SCALES
from tests.engine.family_runs import Ran

FAMILIES = (
    *("gemma3", "gemma3_sees", "gemma3n", "gemma4", "gpt_oss", "gemma2", "mistral_0.1"),
    *("cohere2", "llama4", "mimo_v2", "laguna", "step3_5"),
)
STATIC = ("gemma3", "gemma4", "gpt_oss")  # the others are compared with transformers alone
WITH_EACH_SCALE = ("gemma3", "gpt_oss")
BOUNDED = ("cohere2", "llama4", "mistral_0.1")  # no layer that rotates sees more than its window


@pytest.fixture(scope="module", params=FAMILIES)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return family_runs.run(request.param, tmp_path_factory.mktemp(request.param))


def test_unscaled_requests_are_those_of_stock_vllm_to_the_bit(ran: Ran) -> None:
    family_checks.assert_unscaled_requests_are_stock_vllms_to_the_bit(ran)


@pytest.mark.parametrize("ran", STATIC, indirect=True, scope="module")
def test_requests_of_a_mixed_batch_are_those_of_static_deployments_to_the_bit(ran: Ran) -> None:
    scales = SCALES[1:] if ran.name in WITH_EACH_SCALE else SCALES[-1:]
    family_checks.assert_a_mixed_batch_is_that_of_static_deployments(ran, scales)


def test_requests_that_cross_answer_as_transformers_does_with_keys_turned(ran: Ran) -> None:
    family_checks.assert_answers_are_transformers_with_keys_turned_at_crossings(ran)


@pytest.mark.parametrize("name", BOUNDED)
def test_past_the_trained_length_bounded_distances_are_stock_vllms_to_the_bit(
    name: str, tmp_path: pathlib.Path
) -> None:
    ours, theirs = family_runs.past_the_trained_length(name, tmp_path)
    assert [answer.posenc and (answer.posenc["scale"], answer.posenc["crossings"]) for answer in ours] == [
        (1, [])
    ] * len(ours)
    family_checks.assert_equal(ours, theirs)

"""Models with a state beside attention."""

from __future__ import annotations

import pathlib

import pytest

from tests.engine import family_checks, family_runs
from tests.engine.family_runs import Ran

FAMILIES = ("lfm2", "qwen3_next", "qwen3_5", "falcon_h1")
STATIC = ("lfm2", "qwen3_next", "qwen3_5")  # the other is compared with transformers alone


@pytest.fixture(scope="module", params=FAMILIES)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return family_runs.run(request.param, tmp_path_factory.mktemp(request.param))


def test_unscaled_requests_are_those_of_stock_vllm_to_the_bit(ran: Ran) -> None:
    family_checks.assert_unscaled_requests_are_stock_vllms_to_the_bit(ran)


@pytest.mark.parametrize("ran", STATIC, indirect=True, scope="module")
def test_requests_of_a_mixed_batch_are_those_of_a_static_deployment_to_the_bit(ran: Ran) -> None:
    family_checks.assert_a_mixed_batch_is_that_of_static_deployments(ran)


def test_requests_that_cross_answer_as_if_plain_torch_had_turned_their_keys(ran: Ran) -> None:
    if ran.family.dtype == "float32":
        family_checks.assert_answers_are_transformers_with_keys_turned_at_crossings(ran)
    else:
        # Rounded to 8 bits, what transformers computes is as far from vLLM as keys that nobody turned.
        family_checks.assert_answers_are_those_with_keys_turned_in_float64(ran)


def test_without_any_rotation_requests_are_those_of_stock_vllm_to_the_bit(tmp_path: pathlib.Path) -> None:
    ours, theirs = family_runs.unrotated("nemotron_h", tmp_path)
    family_checks.assert_equal(ours, theirs)

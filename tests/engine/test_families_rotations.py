"""Models with a scaled rotation of their own, or with a rotated part of a key."""

from __future__ import annotations

import pytest

from tests.engine import family_checks, family_runs
from tests.engine.family_runs import Ran

FAMILIES = (
    *("deepseek_v2", "deepseek_v3", "deepseek_v3_plain", "deepseek_v3_bfloat16", "minicpm3", "ministral3"),
    *("llama_linear", "internlm2"),
)
# The others are compared with transformers alone. Of DeepSeek's YaRN, vLLM multiplies the softmax scale by mscale. Ours
# multiplies the queries, which rounds elsewhere.
STATIC = ("deepseek_v3_plain", "ministral3", "internlm2")


@pytest.fixture(scope="module", params=FAMILIES)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return family_runs.run(request.param, tmp_path_factory.mktemp(request.param))


def test_unscaled_requests_are_those_of_stock_vllm_to_the_bit(ran: Ran) -> None:
    family_checks.assert_unscaled_requests_are_stock_vllms_to_the_bit(ran)


@pytest.mark.parametrize("ran", STATIC, indirect=True, scope="module")
def test_requests_of_a_mixed_batch_are_those_of_a_static_deployment_to_the_bit(ran: Ran) -> None:
    family_checks.assert_a_mixed_batch_is_that_of_static_deployments(ran)


def test_requests_that_cross_answer_as_transformers_does_with_keys_turned(ran: Ran) -> None:
    if ran.family.dtype == "float32":
        family_checks.assert_answers_are_transformers_with_keys_turned_at_crossings(ran)
    else:
        family_checks.assert_answers_are_near_transformers_with_keys_turned_at_crossings(ran)

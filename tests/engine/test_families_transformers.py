"""Models that vLLM runs on its Transformers backend, whose rotary embeddings are transformers' own."""

from __future__ import annotations

import pathlib

import pytest

from tests.engine import family_checks, family_runs
from tests.engine.family_runs import Ran
from tests.engine.run_engine import EngineFailed

FAMILIES = ("olmo2", "smollm3", "olmo3", "gpt_neox", "hunyuan")


@pytest.fixture(scope="module", params=FAMILIES)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return family_runs.run(request.param, tmp_path_factory.mktemp(request.param))


def test_unscaled_requests_are_those_of_stock_vllm_to_the_bit(ran: Ran) -> None:
    family_checks.assert_unscaled_requests_are_stock_vllms_to_the_bit(ran)


def test_requests_that_cross_answer_as_transformers_does_with_keys_turned(ran: Ran) -> None:
    family_checks.assert_answers_are_transformers_with_keys_turned_at_crossings(ran)


def test_where_rotated_keys_are_normalised_turning_them_is_refused_with_a_way_out(tmp_path: pathlib.Path) -> None:
    with pytest.raises(EngineFailed, match="changes them in another way: set on_crossing to recompute or pin"):
        family_runs.start("hunyuan", tmp_path, on_crossing="rerotate")

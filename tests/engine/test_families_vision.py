"""Models that see: text crosses as everywhere, and a request with a picture is computed again when it crosses."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.engine import family_checks, family_runs
from tests.engine.conftest import PromptMaker
from tests.engine.families_oracle import SCALES
from tests.engine.family_runs import Ran
from tests.engine.run_engine import Answer, run_engine
from tests.families import vision
from tests.tolerance import LOGPROB_FLOAT32

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
ROWS, COLUMNS = 3, 4  # of the picture, in tokens
NUM_MORE = ROWS * COLUMNS - 1  # tokens that the placeholder becomes, less itself


@pytest.fixture(scope="module", params=FAMILIES)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return family_runs.run(request.param, tmp_path_factory.mktemp(request.param))


def test_unscaled_requests_are_those_of_stock_vllm_to_the_bit(ran: Ran) -> None:
    family_checks.assert_unscaled_requests_are_stock_vllms_to_the_bit(ran)


def test_requests_of_a_mixed_batch_are_those_of_a_static_deployment_to_the_bit(ran: Ran) -> None:
    family_checks.assert_a_mixed_batch_is_that_of_static_deployments(ran)


def test_requests_answer_as_transformers_does_where_cached_keys_are_turned_at_crossings(ran: Ran) -> None:
    family_checks.assert_answers_are_transformers_with_keys_turned_at_crossings(ran)


@dataclasses.dataclass(frozen=True)
class Seen:
    """Requests with pictures, and what Posenc answered."""

    ran: Ran
    unscaled: list[tuple[Any, int]]
    scaled: list[tuple[Any, int]]
    crossing: list[tuple[Any, int]]
    answers: list[list[Answer]]


@pytest.fixture(scope="module")
def seen(ran: Ran) -> Seen:
    token = 2 * json.loads((ran.model / "preprocessor_config.json").read_text())["patch_size"]
    prompts, trained = PromptMaker(seed=1), ran.family.trained

    def with_picture(num_tokens: int, seed: int) -> dict[str, Any]:
        """So many tokens in all, with a picture among them."""
        tokens = prompts(num_tokens - NUM_MORE - 3)
        half = len(tokens) // 2
        around = [*tokens[:half], vision.START, vision.IMAGE, vision.END, *tokens[half:]]
        return {"token_ids": around, "seed": seed, "height": ROWS * token, "width": COLUMNS * token}

    unscaled = [(with_picture(40, 0), 20), (prompts(50), 20), (with_picture(trained - 30, 1), 20)]
    scaled = [(with_picture(3 * trained, 2), 30), (prompts(3 * trained + 5), 20)]
    crossing = [(with_picture(trained - 12, 3), 60), (prompts(trained - 15), 60), (with_picture(60, 0), 30)]
    answers = run_engine(
        ran.model,
        family_runs.scaling(ran),
        [unscaled, scaled, crossing, [crossing[0]]],
        folder=ran.folder,
    )
    return Seen(ran, unscaled, scaled, crossing, answers)


def test_unscaled_pictures_are_those_of_stock_vllm_to_the_bit(seen: Seen) -> None:
    said = seen.answers[0]
    assert [answer.posenc and answer.posenc["scale"] for answer in said] == [1, 1, 1]
    family_checks.assert_equal(said, family_runs.stock(seen.ran, seen.unscaled))


def test_scaled_pictures_are_those_of_a_static_deployment_to_the_bit(seen: Seen) -> None:
    said = seen.answers[1]
    assert [answer.posenc and answer.posenc["scale"] for answer in said] == [SCALES[-1]] * 2
    family_checks.assert_equal(said, family_runs.static(seen.ran, SCALES[-1], seen.scaled))


def test_a_request_with_a_picture_crosses_by_recompute_and_says_so(seen: Seen) -> None:
    trained, (picture, text, short) = seen.ran.family.trained, seen.answers[2]
    at_trained = {"at": trained, "from": 1, "to": 2}
    assert picture.posenc and picture.posenc["crossings"] == [at_trained | {"how": "recompute"}]
    assert text.posenc and text.posenc["crossings"] == [at_trained | {"how": "rerotate"}]
    assert short.posenc and short.posenc["crossings"] == []


def test_after_its_crossing_a_request_with_a_picture_is_one_that_ran_there_from_the_start(seen: Seen) -> None:
    prompt, max_tokens = seen.crossing[0]
    (alone,) = seen.answers[3]
    before = seen.ran.family.trained - len(prompt["token_ids"]) - NUM_MORE + 1  # said before it crossed
    begun = prompt | {"token_ids": prompt["token_ids"] + alone.token_ids[:before]}
    (theirs,) = family_runs.static(seen.ran, 2, [(begun, max_tokens - before)])
    rest = dataclasses.replace(alone, token_ids=alone.token_ids[before:], logprobs=alone.logprobs[before:])
    family_checks.assert_equal([rest], [theirs], LOGPROB_FLOAT32)
    together = seen.answers[2][0]
    family_checks.assert_equal([together], [alone], LOGPROB_FLOAT32)

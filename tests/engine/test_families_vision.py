"""Models that see: text crosses as everywhere, a picture as well, unless its positions have axes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.engine import family_checks, family_runs
from tests.engine.conftest import PromptMaker
from tests.engine.families_oracle import SCALES
from tests.engine.family_runs import Ran
from tests.engine.run_engine import Answer, run_engine
from tests.families import vision
from tests.tolerance import LOGPROB_AFTER_CROSSING, LOGPROB_FLOAT32

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "llava")
WITH_AXES = ("qwen2_5_vl", "qwen3_vl")


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
    prompts, trained, picture = PromptMaker(seed=1), ran.family.trained, vision.PICTURES[ran.name]
    before, after = picture.around

    def with_picture(num_tokens: int, seed: int) -> dict[str, Any]:
        """So many tokens in all, with a picture among them."""
        tokens = prompts(num_tokens - picture.num_tokens - len(before) - len(after))
        half = len(tokens) // 2
        around = [*tokens[:half], *before, picture.placeholder, *after, *tokens[half:]]
        return {"token_ids": around, "seed": seed, "height": picture.height, "width": picture.width}

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


def test_a_request_with_a_picture_says_how_it_crossed(seen: Seen) -> None:
    trained, (picture, text, short) = seen.ran.family.trained, seen.answers[2]
    at_trained = {"at": trained, "from": 1, "to": 2}
    how = "recompute" if seen.ran.name in WITH_AXES else "rerotate"
    assert picture.posenc and picture.posenc["crossings"] == [at_trained | {"how": how}]
    assert text.posenc and text.posenc["crossings"] == [at_trained | {"how": "rerotate"}]
    assert short.posenc and short.posenc["crossings"] == []


def test_a_picture_that_crossed_is_as_one_that_ran_there_or_as_one_turned_by_torch(seen: Seen) -> None:
    prompt, max_tokens = seen.crossing[0]
    (alone,) = seen.answers[3]
    family_checks.assert_equal([seen.answers[2][0]], [alone], LOGPROB_FLOAT32)
    if seen.ran.name not in WITH_AXES:
        turned = family_runs.turned_in_float64(seen.ran, {"alone": seen.crossing[:1]})
        family_checks.assert_equal([alone], turned["alone"], LOGPROB_AFTER_CROSSING)
        return
    num_more = vision.PICTURES[seen.ran.name].num_tokens - 1
    before = seen.ran.family.trained - len(prompt["token_ids"]) - num_more + 1  # said before it crossed
    begun = prompt | {"token_ids": prompt["token_ids"] + alone.token_ids[:before]}
    (theirs,) = family_runs.static(seen.ran, 2, [(begun, max_tokens - before)])
    rest = dataclasses.replace(alone, token_ids=alone.token_ids[before:], logprobs=alone.logprobs[before:])
    family_checks.assert_equal([rest], [theirs], LOGPROB_FLOAT32)

"""Keys of one scale are never read at another; at the same scale they are."""

from __future__ import annotations

import pathlib

import pytest

from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import EngineFailed, run_engine
from tests.engine.test_scales_in_one_batch import arguments, assert_answers_as_transformers


@pytest.mark.promise("prefix cache")
def test_a_cached_prompt_is_found_again_at_its_scale_and_computed_anew_at_another(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    prompt = prompts(200)
    at_1, at_2, at_4 = (prompt, 24), (prompt, 200), (prompt, 700)
    answers = [
        batch[0]
        for batch in run_engine(
            tiny,
            arguments("yarn", enforce_eager=True),
            [[at_1], [at_2], [at_4], [at_1], [at_2], [at_4]],
            folder=tmp_path,
        )
    ]
    assert [answer.posenc and answer.posenc["scale"] for answer in answers] == [1, 2, 4, 1, 2, 4]
    assert [answer.num_cached_tokens for answer in answers] == [0, 0, 0, 192, 192, 192]
    for answer, scale in zip(answers, (1, 2, 4, 1, 2, 4), strict=True):
        assert_answers_as_transformers(tiny, "yarn", prompt, scale, answer)


def test_a_request_may_hit_blocks_that_another_one_fills_in_the_same_step(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    # Steps of 128 tokens: while the first prompt is in its second chunk, the others begin, with its prefix as a hit.
    prefix = prompts(192)
    together = [(prefix + prompts(length), 24) for length in (30, 35, 20)]
    (answers,) = run_engine(tiny, arguments("yarn", enforce_eager=True), [together], folder=tmp_path)
    assert [answer.num_cached_tokens for answer in answers] == [0, 192, 192]
    for (prompt, _), answer in zip(together, answers, strict=True):
        assert_answers_as_transformers(tiny, "yarn", prompt, 1, answer)


def test_without_the_salt_the_ledger_stops_a_prompt_from_being_read_across_scales(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    # The negative control of the tests above.
    prompt = prompts(200)
    with pytest.raises(EngineFailed, match=r"MixedRotations: request .* reads keys of scale number 1, but block"):
        run_engine(
            tiny,
            arguments("yarn", enforce_eager=True),
            [[(prompt, 24)], [(prompt, 200)]],
            module="tests.engine.without_salt",
            folder=tmp_path,
        )

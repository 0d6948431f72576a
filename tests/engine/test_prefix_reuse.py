"""A new request whose prefix is cached at another scale reads re-rotated copies of it, and says so."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import Answer, blocks_in_use, counted, run_engine
from tests.engine.test_crossing import SCALES, Request, arguments, first_scale
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.tolerance import LOGPROB_AFTER_CROSSING

BLOCK_SIZE = 32
REUSED = 6 * BLOCK_SIZE


def batches(prompts: PromptMaker) -> list[tuple[list[Request], int | None]]:
    """Requests, and the scale that others have left their first ``REUSED`` tokens at, None for no other than theirs."""
    short, long = prompts(REUSED), prompts(600)
    return [
        ([(short + prompts(10), 5)], None),
        ([(short + prompts(100), 20)], 1),
        ([(short + prompts(20), 10)], None),  # its own scale has it
        ([(short + prompts(90), 20), (short + prompts(120), 20)], 1),  # what was copied before is nobody else's
        ([(long, 5)], None),
        ([(long[:200] + prompts(10), 10)], 4),
        ([(long[:200] + prompts(45), 60)], 4),  # and crosses
    ]


def expected(batch: list[Request], reused_scale: int | None) -> list[list[dict[str, Any]] | None]:
    return [
        None
        if reused_scale is None
        else [{"tokens": REUSED, "from": reused_scale, "to": first_scale(prompt, max_tokens)}]
        for prompt, max_tokens in batch
    ]


def reported(answer: Answer) -> list[dict[str, Any]] | None:
    assert answer.posenc is not None
    return answer.posenc.get("prefixes_reused")


@pytest.mark.parametrize(
    "budget",
    [
        pytest.param(8192, id="at-once"),
        pytest.param(BLOCK_SIZE, id="block-by-block", marks=pytest.mark.promise("prefix reuse")),
    ],
)
def test_a_prefix_of_another_scale_is_read_as_an_unrotated_cache_would_be(
    budget: int, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    asked = batches(prompts)
    settings = {"prefix_reuse": "rerotate", "rerotate_budget_tokens": budget}
    engine = arguments("yarn", settings, block_size=BLOCK_SIZE, disable_log_stats=False)
    answers = run_engine(tiny, engine, [batch for batch, _ in asked], folder=tmp_path)
    assert_all_answer_as_reused(tiny, asked, answers)
    num_reused = sum(REUSED * len(batch) for batch, reused_scale in asked if reused_scale)
    assert counted(tmp_path, "posenc_prefix_reused_tokens") == num_reused
    assert blocks_in_use(tmp_path) == 0


def assert_all_answer_as_reused(
    model: pathlib.Path, asked: list[tuple[list[Request], int | None]], answers: list[list[Answer]]
) -> None:
    oracle = UnrotatedOracle(model, "yarn", SCALES)
    for (batch, reused_scale), said in zip(asked, answers, strict=True):
        assert [reported(answer) for answer in said] == expected(batch, reused_scale)
        for (prompt, max_tokens), answer in zip(batch, said, strict=True):
            reused = (0, 1) if reused_scale is None else (REUSED, reused_scale)
            greedy, logprobs = oracle.score(prompt, answer.token_ids, first_scale(prompt, max_tokens), reused)
            assert answer.token_ids == greedy
            assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_AFTER_CROSSING


def test_with_exact_reuse_no_request_reads_what_was_computed_at_another_scale(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    asked = [batch for batch, _ in batches(prompts)]
    answers = run_engine(tiny, arguments("yarn", block_size=BLOCK_SIZE), asked, folder=tmp_path)
    oracle = UnrotatedOracle(tiny, "yarn", SCALES)
    for batch, said in zip(asked, answers, strict=True):
        for (prompt, max_tokens), answer in zip(batch, said, strict=True):
            assert reported(answer) is None
            greedy, logprobs = oracle.score(prompt, answer.token_ids, first_scale(prompt, max_tokens))
            assert answer.token_ids == greedy
            assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_AFTER_CROSSING


@pytest.mark.promise("conversations go on")
def test_a_turn_goes_on_from_what_earlier_turns_have_cached(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """Answers are those of one request that began at scale 1 with the first turn, whichever turn computed a token."""
    text = prompts(1100)
    turns = [(text[:200], 5), (text[:350], 20), (text[:550], 20), (text[:600], 400), (text[:620], 5)]
    branch, other = (text[:300] + prompts(20), 5), (prompts(600), 5)
    asked = [*([turn] for turn in turns), [branch, other]]
    engine = arguments("yarn", {"prefix_reuse": "continue"}, block_size=BLOCK_SIZE, disable_log_stats=False)
    answers = [answer for batch in run_engine(tiny, engine, asked, folder=tmp_path) for answer in batch]
    said = [
        answer.posenc["continued"] if answer.posenc and "continued" in answer.posenc else None for answer in answers
    ]
    assert said == [
        None,
        {"tokens": 192, "first_scale": 1, "scale": 1},
        {"tokens": 320, "first_scale": 1, "scale": 2},
        {"tokens": 544, "first_scale": 1, "scale": 4},
        {"tokens": 576, "first_scale": 1, "scale": 4},
        {"tokens": 288, "first_scale": 1, "scale": 2},
        None,
    ]
    oracle = UnrotatedOracle(tiny, "yarn", SCALES)
    for request, answer, continued in zip((*turns, branch, other), answers, said, strict=True):
        prompt, max_tokens = request
        first = 1 if continued else first_scale(prompt, max_tokens)
        greedy, logprobs = oracle.score(prompt, answer.token_ids, first)
        assert answer.token_ids == greedy
        assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_AFTER_CROSSING
    assert blocks_in_use(tmp_path) == 0

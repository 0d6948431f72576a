"""Requests with drafted tokens answer as without them over crossings, and a drafter's keys are turned with the model's.

No oracle knows of drafts: each is the one for the same requests without them.
"""

from __future__ import annotations

import pathlib
from itertools import chain
from typing import Any

import pytest

from tests.checkpoints import TRAINED
from tests.engine.conftest import PromptMaker
from tests.engine.drafters import NUM_DRAFTED, save_shorter, save_with_mtp, speculative_config
from tests.engine.run_engine import Answer, blocks_in_use, counted, run_engine
from tests.engine.test_crossing import (
    SCALES,
    Request,
    arguments,
    assert_all_answer_as_recomputed,
    assert_all_answer_as_unrotated,
    crowd,
)
from tests.engine.transformers_oracle import Oracle
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.tolerance import LOGPROB_FLOAT32

SCALING = {"scales": (1, 2, 4), "max_model_len": 4 * TRAINED}
# vLLM compiles its search for n-grams when an engine starts, which takes longer than the searches of these tests.
INTERPRETED = {"NUMBA_DISABLE_JIT": "1"}


def drafting(method: str, tiny: pathlib.Path, folder: pathlib.Path, scaling: dict[str, Any] | None = None) -> Any:
    """Arguments of an engine."""
    config = speculative_config(method, tiny, folder)
    return arguments("yarn", SCALING | (scaling or {}), speculative_config=config, disable_log_stats=False)


def crossing(prompts: PromptMaker) -> list[list[Request]]:
    """None, one and two crossings side by side, prompts that repeat a phrase, and prefixes that are found again."""
    phrase, prefix = prompts(12), prompts(192)
    first = [(prompts(40), 30), (prompts(240), 40), (prompts(200), 340), (phrase * 20, 40), (phrase * 40, 60)]
    return [
        first,
        [(prompt, min(new, 60)) for prompt, new in first[1:3]],
        [(prefix + prompts(n), 60) for n in (40, 50)],
    ]


def assert_counts(folder: pathlib.Path, asked: list[list[Request]], *, accepts_all: bool = False) -> None:
    """No token is counted twice, nor one that was rejected. Of a right drafter, answers' ends alone are rejected."""
    requests = [request for batch in asked for request in batch]
    assert counted(folder, "posenc_generation_tokens") == sum(new for _, new in requests)
    drafted = counted(folder, "vllm:spec_decode_num_draft_tokens")
    accepted = counted(folder, "vllm:spec_decode_num_accepted_tokens")
    assert drafted > NUM_DRAFTED * len(requests)
    if accepts_all:
        assert drafted - accepted <= NUM_DRAFTED * len(requests)


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle", "eagle3"])
def test_drafts_change_no_answer_over_crossings(
    method: str, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """A model that drafts for itself is right each time, so its own keys were turned as the model's."""
    asked = crossing(prompts)
    engine = drafting(method, tiny, tmp_path)
    answers = run_engine(tiny, engine, asked, folder=tmp_path, environment=INTERPRETED)
    assert_all_answer_as_unrotated(UnrotatedOracle(tiny, "yarn", SCALES), asked, answers)
    assert_counts(tmp_path, asked, accepts_all=method == "draft_model")


def test_drafts_change_no_answer_of_requests_that_are_recomputed(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """The drafter was trained on shorter requests than the model, and drafts for all of them."""
    asked = crossing(prompts)
    shorter = save_shorter(tiny, tmp_path / "shorter")
    engine = drafting("draft_model", shorter, tmp_path, {"on_crossing": "recompute"})
    answers = run_engine(tiny, engine, asked, folder=tmp_path)
    assert_all_answer_as_recomputed(tiny, asked, answers)
    assert_counts(tmp_path, asked, accepts_all=True)


def test_drafts_at_the_end_of_a_pinned_request_change_no_answer(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """Each may grow to the length of its scale. The drafts of its last step would go on behind it, in another block."""
    batch = [(prompts(scale * TRAINED - new), new) for scale, new in ((1, 31), (2, 51))]
    engine = drafting("draft_model", tiny, tmp_path, {"on_crossing": "pin"})
    [answers] = run_engine(tiny, engine, [batch], folder=tmp_path)
    for scale, (prompt, _), answer in zip((1, 2), batch, answers, strict=True):
        greedy, logprobs = Oracle(tiny, "yarn", scale).score(prompt, answer.token_ids)
        assert answer.token_ids == greedy
        assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_FLOAT32
    assert_counts(tmp_path, [batch], accepts_all=True)


def test_preempted_requests_with_drafts_replay_their_crossings(tiny: pathlib.Path, tmp_path: pathlib.Path) -> None:
    asked = [crowd(3)[:24]]
    engine = drafting("draft_model", tiny, tmp_path, {"rerotate_budget_tokens": 32})
    engine |= {"max_num_seqs": 16, "num_gpu_blocks_override": 34}
    answers = run_engine(tiny, engine, asked, folder=tmp_path)
    assert_all_answer_as_unrotated(UnrotatedOracle(tiny, "yarn", SCALES), asked, answers)
    assert counted(tmp_path, "vllm:num_preemptions") >= 10
    assert blocks_in_use(tmp_path) == 0
    assert_counts(tmp_path, asked)


def test_drafts_change_no_answer_over_a_prefix_of_another_scale(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    prefix = prompts(192)
    asked = [[(prefix + prompts(20), 10)], [(prefix + prompts(150), 60)], [(prefix + prompts(30), 60)]]
    with_drafts = drafting("draft_model", tiny, tmp_path, {"prefix_reuse": "rerotate"})
    without = with_drafts | {"speculative_config": None}
    drafted, plain = (run_engine(tiny, engine, asked, folder=tmp_path) for engine in (with_drafts, without))
    assert_alike(drafted, plain)
    assert "prefixes_reused" in (drafted[1][0].posenc or {})


def test_drafts_of_a_models_own_layer_change_no_answer(prompts: PromptMaker, tmp_path: pathlib.Path) -> None:
    """MTP."""
    model = save_with_mtp(tmp_path / "model")
    asked = crossing(prompts)
    without = arguments("yarn", SCALING, disable_log_stats=False)
    plain = run_engine(model, without, asked, folder=tmp_path)
    with_drafts = without | {"speculative_config": {"method": "mtp", "num_speculative_tokens": NUM_DRAFTED}}
    drafted = run_engine(model, with_drafts, asked, folder=tmp_path)
    assert_alike(drafted, plain)
    assert_counts(tmp_path, asked)


def assert_alike(drafted: list[list[Answer]], plain: list[list[Answer]]) -> None:
    for ours, theirs in zip(chain.from_iterable(drafted), chain.from_iterable(plain), strict=True):
        assert (ours.token_ids, ours.posenc) == (theirs.token_ids, theirs.posenc)
        assert max(abs(a - b) for a, b in zip(ours.logprobs, theirs.logprobs, strict=True)) < LOGPROB_FLOAT32

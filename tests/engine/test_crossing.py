"""A request that outgrows its scale answers as if its keys had been cached un-rotated and rotated at every step."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import TRAINED
from tests.engine.conftest import PromptMaker
from tests.engine.device import needs_workers
from tests.engine.run_engine import Answer, blocks_in_use, counted, run_engine
from tests.engine.transformers_oracle import Oracle
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.tolerance import LOGPROB_AFTER_CROSSING, LOGPROB_FLOAT32

SCALES = (1, 2, 4, 8)
HEADROOM = 8

Request = tuple[list[int], int]


def deployment(rope_type: str, **settings: Any) -> Deployment:
    defaults = {
        "scales": SCALES,
        "original_max_position_embeddings": TRAINED,
        "max_model_len": 8 * TRAINED,
        "headroom_tokens": HEADROOM,
        "on_crossing": "rerotate",
    }
    return Deployment(rope_type=rope_type, **defaults | settings)


ENGINE = {
    "dtype": "float32",
    "block_size": 32,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 8,
    "enable_prefix_caching": True,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**28,
}


def arguments(
    rope_type: str, scaling: dict[str, Any] | None = None, attention: AttentionChoice | None = None, **engine: Any
) -> dict[str, Any]:
    return engine_arguments(deployment(rope_type, **(scaling or {})), ENGINE | engine, attention)


def batches(prompts: PromptMaker) -> list[list[Request]]:
    """None, one, two and three crossings side by side; again, but shorter; over a shared prefix; one prompt twice."""
    alone = [(prompts(40), 30), (prompts(240), 40), (prompts(500), 40), (prompts(200), 400), (prompts(230), 830)]
    prefix = prompts(192)
    shared = [(prefix + prompts(n), new) for n, new in ((40, 60), (50, 30), (20, 20), (45, 40))]
    twin = prompts(230)
    again = [(prompt, min(new, 60)) for prompt, new in alone]
    return [alone, again, shared, [(prefix + prompts(10), 5)], [(twin, 60), (twin, 60)]]


def first_scale(prompt: list[int], max_tokens: int) -> int:
    length = len(prompt) + min(max_tokens, HEADROOM)
    return next(scale for scale in SCALES if length <= scale * TRAINED)


def expected_crossings(oracle: UnrotatedOracle, prompt: list[int], max_tokens: int) -> list[dict[str, Any]]:
    first = first_scale(prompt, max_tokens)
    computed = len(prompt) + max_tokens - 1  # the last token is never computed
    path = [oracle.scale_at(position, first) for position in range(computed)]
    return [
        {"at": position, "from": path[position - 1], "to": path[position], "how": "rerotate"}
        for position in range(1, computed)
        if path[position] != path[position - 1]
    ]


def assert_answers_as_unrotated(oracle: UnrotatedOracle, request: Request, answer: Answer) -> None:
    prompt, max_tokens = request
    greedy, logprobs = oracle.score(prompt, answer.token_ids, first_scale(prompt, max_tokens))
    assert answer.token_ids == greedy
    assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_AFTER_CROSSING
    assert answer.posenc is not None
    assert answer.posenc["crossings"] == expected_crossings(oracle, prompt, max_tokens)


def assert_all_answer_as_unrotated(
    oracle: UnrotatedOracle, asked: list[list[Request]], answers: list[list[Answer]]
) -> None:
    for batch, said in zip(asked, answers, strict=True):
        for request, answer in zip(batch, said, strict=True):
            assert_answers_as_unrotated(oracle, request, answer)


@pytest.mark.parametrize(
    ("rope_type", "mode"),
    [pytest.param("yarn", "eager", marks=pytest.mark.promise("rerotate"))]
    + [(rope_type, "eager") for rope_type in ("dynamic", "linear", "ntk", "proportional")]
    # Compiled, methods differ in what their tables hold, and in nothing that is compiled.
    + [("yarn", "compiled")],
)
def test_requests_that_cross_answer_as_an_unrotated_cache_would(
    rope_type: str, mode: str, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    asked = batches(prompts)
    answers = run_engine(tiny, arguments(rope_type, enforce_eager=mode == "eager"), asked, folder=tmp_path)
    assert_all_answer_as_unrotated(UnrotatedOracle(tiny, rope_type, SCALES), asked, answers)
    # A rerun finds what was prefilled at the first scale, although its request has crossed since.
    assert [answer.num_cached_tokens for answer in answers[1]] == [
        (len(prompt) - 1) // 32 * 32 for prompt, _ in asked[1]
    ]


def test_a_crossing_spread_over_steps_gives_the_same_answers(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    asked = batches(prompts)
    answers = run_engine(tiny, arguments("yarn", {"rerotate_budget_tokens": 64}), asked, folder=tmp_path)
    assert_all_answer_as_unrotated(UnrotatedOracle(tiny, "yarn", SCALES), asked, answers)


@needs_workers(2)
@pytest.mark.parametrize(
    "parallel",
    [
        {"tensor_parallel_size": 2, "enforce_eager": True},
        # In eager mode stock vLLM's CPU runner fails with two stages: it skips the warm-up that they need.
        {"pipeline_parallel_size": 2, "enforce_eager": False},
    ],
    ids=["tensor", "pipeline"],
)
def test_two_workers_answer_as_an_unrotated_cache_would(
    parallel: dict[str, Any], tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    asked = batches(prompts)
    answers = run_engine(tiny, arguments("yarn", **parallel), asked, folder=tmp_path)
    assert_all_answer_as_unrotated(UnrotatedOracle(tiny, "yarn", SCALES), asked, answers)


def crowd(seed: int) -> list[Request]:
    """60 requests, a third of which cross once or twice, half of these over a prefix that they share."""
    prompts = PromptMaker(seed)
    prefix = prompts(96)
    lengths = [(60, 120), (120, 50), (235, 150), (150, 30), (245, 290), (30, 160)] * 10
    return [
        ((prefix if index % 4 == 0 and length > 96 else prompts(min(length, 96))) + prompts(max(length - 96, 1)), new)
        for index, (length, new) in enumerate(lengths)
    ]


@pytest.mark.parametrize(
    ("budget", "seeds"),
    [
        pytest.param(8192, (0,), id="at-once"),
        pytest.param(8192, (1, 2), id="at-once, more of them", marks=pytest.mark.release),
        pytest.param(32, (3,), id="block-by-block", marks=pytest.mark.promise("preemption")),
        pytest.param(32, (4,), id="block-by-block, more of them", marks=pytest.mark.release),
    ],
)
def test_preempted_requests_replay_their_crossings(
    budget: int, seeds: tuple[int, ...], tiny: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    settings = {"scales": (1, 2, 4), "max_model_len": 3 * TRAINED, "rerotate_budget_tokens": budget}
    # 16 requests of a mean 270 tokens want 135 blocks.
    pool = {"max_num_seqs": 16, "num_gpu_blocks_override": 26, "disable_log_stats": False}
    crowds = [crowd(seed) for seed in seeds]
    answers = run_engine(tiny, arguments("yarn", settings, **pool), crowds, folder=tmp_path)
    assert_all_answer_as_unrotated(UnrotatedOracle(tiny, "yarn", SCALES), crowds, answers)
    for said in answers:
        assert sum(bool(answer.posenc and answer.posenc["crossings"]) for answer in said) >= 20
    assert counted(tmp_path, "vllm:num_preemptions") >= 20 * len(seeds)
    assert blocks_in_use(tmp_path) == 0


@pytest.mark.promise("recompute")
def test_recomputed_requests_answer_as_transformers_run_freshly_at_each_scale(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    asked = batches(prompts)
    answers = run_engine(tiny, arguments("yarn", {"on_crossing": "recompute"}), asked, folder=tmp_path)
    assert_all_answer_as_recomputed(tiny, asked, answers)


def assert_all_answer_as_recomputed(
    model: pathlib.Path,
    asked: list[list[Request]],
    answers: list[list[Answer]],
    tolerance: float = LOGPROB_FLOAT32,
) -> None:
    path = UnrotatedOracle(model, "yarn", SCALES).scale_at
    static = {scale: Oracle(model, "yarn", scale) for scale in SCALES}
    for batch, said in zip(asked, answers, strict=True):
        for (prompt, max_tokens), answer in zip(batch, said, strict=True):
            first = first_scale(prompt, max_tokens)
            # The token at an index is predicted by the position before it.
            scales = [max(first, path(len(prompt) + index - 1, first)) for index in range(max_tokens)]
            scored = {scale: static[scale].score(prompt, answer.token_ids) for scale in set(scales)}
            assert answer.token_ids == [scored[scale][0][index] for index, scale in enumerate(scales)]
            logprobs = [scored[scale][1][index] for index, scale in enumerate(scales)]
            assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < tolerance
            assert answer.posenc is not None
            assert [crossing["how"] for crossing in answer.posenc["crossings"]] == ["recompute"] * (
                len(set(scales)) - 1
            )

"""Our scheduler with drafted tokens, in step with its workers or ahead of them, for both of vLLM's model runners."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_runtime.kv.deployment import Deployment
from tests.kv.model_request import Request
from tests.kv.test_state_machine import deployments
from tests.vllm_adapter.in_scheduler.model_core import Asked, said_alone
from tests.vllm_adapter.in_scheduler.model_drafts import HAVE_CACHES, DraftingCore, speculative_config
from tests.vllm_adapter.in_scheduler.test_scheduler_ahead import PIPELINES, arrivals

METHODS = {"in-step": ("ngram", "draft_model", "eagle"), "ahead": ("ngram", "draft_model", "mtp")}


def drafting_core(
    vllm_config: Any,
    deployment: Deployment,
    asked: list[Asked],
    pipeline: str,
    method: str,
    num_drafted: int,
    *,
    seed: int = 0,
    **engine: Any,
) -> DraftingCore:
    depth, ahead = PIPELINES[pipeline]
    drafting = {
        "num_drafted": num_drafted,
        "num_behind": num_drafted if method in HAVE_CACHES else 0,
        "known": {f"r{index}": said_alone(deployment, one) for index, one in enumerate(asked)},
        "longest": deployment.max_model_len,
        "seed": seed,
    }
    return DraftingCore(vllm_config, deployment, depth=depth, ahead=ahead, drafting=drafting, **engine)


def said_by_scale(deployment: Deployment, one: Asked, num_said: int) -> Counter[str]:
    """How many tokens a request says at which scale, if it says so many."""
    request = Request(deployment, "alone", one.prompt, one.max_tokens, one.on_crossing, 1)
    positions = range(len(one.prompt) - 1, len(one.prompt) - 1 + num_said)
    return Counter(f"{deployment.scales[request.scale_at(position)]:g}" for position in positions)


@pytest.mark.parametrize(
    ("pipeline", "method", "model_runner"),
    [
        # Each pipeline with each method once; the other runner is slow.
        pytest.param(pipeline, method, runner, marks=() if runner == quick else pytest.mark.slow)
        for (pipeline, methods), quick in zip(METHODS.items(), (1, 2), strict=True)
        for method in methods
        for runner in (1, 2)
    ],
)
def test_every_request_says_what_it_would_say_without_drafts(
    pipeline: str, method: str, model_runner: int, vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    total: Counter[str] = Counter()

    @settings(max_examples=60, database=None, derandomize=True, deadline=None)
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        deployment = data.draw(deployments())
        asked = data.draw(arrivals(deployment))
        block_size, num_drafted = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
        config = speculative_config(method, num_drafted, drops_block=data.draw(st.booleans()))
        monkeypatch.setattr(vllm_config, "speculative_config", config)
        vllm_config.scheduler_config.max_num_seqs = data.draw(st.integers(2, 5))
        vllm_config.scheduler_config.max_num_batched_tokens = data.draw(st.sampled_from([12, 16, 40]))
        vllm_config.scheduler_config.policy = data.draw(st.sampled_from(["fcfs", "priority"]))
        vllm_config.scheduler_config.long_prefill_token_threshold = data.draw(st.sampled_from([0, 0, 3]))
        num_blocks = 1 + -(-deployment.max_model_len // block_size) + data.draw(st.sampled_from([40, 16, 4, 2, 1, 0]))
        core = drafting_core(
            vllm_config,
            deployment,
            asked,
            pipeline,
            method,
            num_drafted,
            seed=data.draw(st.integers(0, 99)),
            block_size=block_size,
            num_blocks=num_blocks,
            model_runner=model_runner,
        )
        half = core.scheduler._half
        take_report, half.take_report = half.take_report, dict  # all of it at the end
        core.serve(asked, resets=data.draw(st.sampled_from([(), (), (), (5,), (12,), (25,), (8, 9, 20)])))
        counted: Counter[str] = Counter()
        for index, one in enumerate(asked):
            said, response = core.said[f"r{index}"], core.responses[f"r{index}"]
            total["crossings"] += len(response["crossings"])
            counted += said_by_scale(deployment, one, len(said))
            if "prefixes_reused" not in response:
                alone = core.known[f"r{index}"]
                assert said == (alone if one.cancelled_after is None else alone[: len(said)])
        report = take_report()
        if deployment.on_crossing == "rerotate" and not any(one.on_crossing == "recompute" for one in asked):
            assert report.get("generation_tokens", {}) == counted
        assert sum(report.get("generation_tokens", {}).values()) == counted.total()
        assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == num_blocks - 1
        total["accepted"] += core.num_accepted
        total["rejected"] += core.num_rejected

    holds()
    assert min(total[what] for what in ("crossings", "accepted", "rejected")) > 20

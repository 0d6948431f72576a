"""Our scheduler with drafted tokens, in step with its workers or ahead of them, for both of vLLM's model runners."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_runtime.kv.crossing import blocks_to_copy
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_scheduler import crossing_blocks
from tests.kv.model_groups import MODELS, Groups
from tests.kv.model_request import Request
from tests.kv.test_state_machine import deployments
from tests.vllm_adapter.in_scheduler.model_core import Asked, first_of, num_needed, said_alone
from tests.vllm_adapter.in_scheduler.model_drafts import HAVE_CACHES, DraftingCore, speculative_config
from tests.vllm_adapter.in_scheduler.test_scheduler_ahead import CROWD, PIPELINES, TEXT, arrivals

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


def said_by_scale(deployment: Deployment, one: Asked, num_said: int, first: int | None = None) -> Counter[str]:
    """How many tokens a request says at which scale, if it says so many.

    Args:
        first: index of the scale at which it begins, None for the one that it is admitted at.
    """
    request = Request(deployment, "alone", one.prompt, one.max_tokens, one.on_crossing, 1)
    request.first = request.first if first is None else first
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

    @settings(max_examples=80, database=None, derandomize=True, deadline=None)
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        deployment = data.draw(deployments())
        if deployment.on_crossing == "rerotate" and data.draw(st.booleans()):
            deployment = dataclasses.replace(deployment, prefix_reuse="continue")
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
            first = first_of(deployment, response)
            counted += said_by_scale(deployment, one, len(said), first)
            if "prefixes_reused" not in response:
                alone = said_alone(deployment, one, first)
                assert said == (alone if one.cancelled_after is None else alone[: len(said)])
        report = take_report()
        if deployment.on_crossing == "rerotate" and not any(one.on_crossing == "recompute" for one in asked):
            assert report.get("generation_tokens", {}) == counted
        assert sum(report.get("generation_tokens", {}).values()) == counted.total()
        assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == num_blocks - 1
        total["accepted"] += core.drafting.num_accepted
        total["rejected"] += core.drafting.num_rejected

    holds()
    assert min(total[what] for what in ("crossings", "accepted", "rejected")) > 20


IN_STEP_AND_AHEAD = pytest.mark.parametrize("pipeline", ["in-step", "ahead"])
ALONE = Asked(0, TEXT[:8], 60)  # it crosses at 40


def alone(pipeline: str, method: str, vllm_config: Any, monkeypatch: pytest.MonkeyPatch, **how: Any) -> DraftingCore:
    """A core for one request, with four tokens drafted in a step."""
    monkeypatch.setattr(vllm_config, "speculative_config", speculative_config(method, 4))
    vllm_config.scheduler_config.max_num_seqs, vllm_config.scheduler_config.max_num_batched_tokens = 4, 40
    settings = {name: how.pop(name) for name in ("on_crossing", "max_model_len") if name in how}
    how = {"block_size": 4, "num_blocks": 60, "model_runner": 1} | how
    deployment = dataclasses.replace(CROWD, **settings)
    return drafting_core(vllm_config, deployment, [ALONE], pipeline, method, num_drafted=4, **how)


@IN_STEP_AND_AHEAD
@pytest.mark.parametrize("method", ["ngram", "eagle"])
def test_a_request_stands_idle_at_a_crossing_until_its_last_tokens_are_known(
    method: str, pipeline: str, vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of its drafted tokens are rejected on the way; and nobody verifies drafts that no worker has."""
    for seed in range(20):
        core = alone(pipeline, method, vllm_config, monkeypatch, seed=seed)
        core.admit("r0", ALONE)
        num_idle = 0
        while "r0" not in core.responses:
            core.step()
            num_idle += bool(core.scheduler.requests) and not core.drafting.batch
        assert core.responses["r0"]["crossings"] == [{"at": 40, "from": 1.0, "to": 2.0, "how": "rerotate"}]
        assert num_idle == (1 if pipeline == "ahead" else 0)
        assert not core.drafting.num_lacking


@IN_STEP_AND_AHEAD
@pytest.mark.parametrize("on_crossing", ["rerotate", "recompute"])
def test_rejected_tokens_are_not_counted(
    on_crossing: str, pipeline: str, vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in the report of an answer that a client ends in the middle."""
    for num_steps in range(3, 50):
        core = alone(pipeline, "eagle", vllm_config, monkeypatch, on_crossing=on_crossing)
        half = core.scheduler._half
        take_report, half.take_report = half.take_report, dict  # all of it at the end
        core.serve([dataclasses.replace(ALONE, cancelled_after=num_steps)])
        counted, num_said = take_report()["generation_tokens"], len(core.said["r0"])
        # A token is said after each of 8 to 40 tokens at scale 1, and after those behind at scale 2.
        assert counted == {
            scale: count for scale, count in (("1", min(num_said, 33)), ("2", num_said - 33)) if count > 0
        }
    assert core.drafting.num_rejected and num_said == 60


@IN_STEP_AND_AHEAD
def test_a_request_crosses_in_a_pool_that_holds_no_more_than_the_longest_one(
    pipeline: str, vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for drafts behind the longest request, and there need not be any."""
    core = alone(pipeline, "eagle", vllm_config, monkeypatch, max_model_len=44, num_blocks=1 + 11)
    asked = dataclasses.replace(ALONE, max_tokens=36)
    core.serve([asked])
    assert core.responses["r0"]["crossings"] and core.said["r0"] == core.known["r0"][:36]


def test_a_crossing_leaves_blocks_for_the_drafts_of_all_that_run(
    vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the request itself: two, for its next token and eight behind it. Of each other one: at most three."""
    core = alone("in-step", "eagle", vllm_config, monkeypatch)
    asked: list[dict[str, int]] = []

    def noted(held: Any, **rooms: int) -> Any:
        asked.append(rooms)
        return blocks_to_copy(held, **rooms)

    monkeypatch.setattr(crossing_blocks, "blocks_to_copy", noted)
    core.admit("r0", ALONE)
    core.drafting._known |= {"r1": core.known["r0"]}
    core.admit("r1", dataclasses.replace(ALONE, on_crossing="pin"))
    while "r0" not in core.responses:
        core.step()
    [rooms] = asked
    # It holds eleven blocks for 40 tokens and four that the drafter wrote behind them.
    assert (rooms["num_needed"], rooms["num_reserved"]) == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("model_runner", [1, 2])
@IN_STEP_AND_AHEAD
@pytest.mark.parametrize("groups", [*MODELS.values()][1:], ids=[*MODELS][1:])
def test_with_windows_every_request_says_what_it_would_say_without_drafts(
    groups: Groups, pipeline: str, model_runner: int, vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_crossings = num_rejected = 0

    @settings(max_examples=20, database=None, derandomize=True, deadline=None)
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        nonlocal num_crossings, num_rejected
        deployment = data.draw(deployments())
        asked = data.draw(arrivals(deployment))
        # vLLM finds wrong prefixes where a chunk does not end with a block.
        block_size = data.draw(st.sampled_from([1, 2, 4]))
        num_drafted = data.draw(st.integers(1, 4))
        monkeypatch.setattr(vllm_config, "speculative_config", speculative_config("eagle", num_drafted))
        vllm_config.scheduler_config.max_num_seqs = data.draw(st.integers(2, 5))
        vllm_config.scheduler_config.max_num_batched_tokens = max_tokens = data.draw(st.sampled_from([12, 16, 40]))
        in_flight = PIPELINES[pipeline][0] * max_tokens
        needed = [num_needed(group, deployment.max_model_len, block_size, in_flight) for group in groups]
        num_blocks = 1 + sum(needed) + data.draw(st.sampled_from([40, 16, 4, 1, 0]))
        core = drafting_core(
            vllm_config,
            deployment,
            asked,
            pipeline,
            "eagle",
            num_drafted,
            block_size=block_size,
            num_blocks=num_blocks,
            model_runner=model_runner,
            groups=groups,
        )
        core.serve(asked, resets=data.draw(st.sampled_from([(), (), (5,), (12, 25)])))
        for index, one in enumerate(asked):
            said, response = core.said[f"r{index}"], core.responses[f"r{index}"]
            num_crossings += len(response["crossings"])
            if "prefixes_reused" not in response:
                known = core.known[f"r{index}"]
                assert said == (known if one.cancelled_after is None else known[: len(said)])
        assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == num_blocks - 1
        num_rejected += core.drafting.num_rejected

    holds()
    assert num_crossings and num_rejected

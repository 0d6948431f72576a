"""Our scheduler over many steps, scheduled ahead of its workers or not, for both of vLLM's model runners.

What becomes of requests and blocks is vLLM's own doing here; what workers compute is a model of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.interface import PauseState

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import releases
from tests.kv.test_state_machine import TEXTS, deployments
from tests.vllm_adapter.in_scheduler.model_core import Asked, EngineCore, said_alone

TEXT = TEXTS[0]
# Steps that are begun before the first is heard of, and whether requests may be in all of them.
PIPELINES = {"in-step": (1, False), "ahead": (2, True), "two-stages": (2, False)}


@st.composite
def arrivals(draw: st.DrawFn, deployment: Deployment) -> list[Asked]:
    """Prompts are beginnings of one text, so that blocks are shared. What is not to be had is refused elsewhere."""
    asked = []
    for _ in range(draw(st.integers(1, 6))):
        prompt = TEXT[: draw(st.integers(1, 14))] + draw(st.lists(st.integers(0, 1), max_size=2))
        prompt = prompt[: deployment.max_model_len - 1]
        on_crossing = draw(st.sampled_from([None] * 4 + ["rerotate", "recompute", "pin"]))
        asked.append(
            Asked(
                after=draw(st.integers(0, 12)),
                prompt=prompt,
                max_tokens=min(draw(st.sampled_from([40, 18, 9, 2])), deployment.max_model_len - len(prompt)),
                on_crossing=on_crossing if deployment.on_crossing in ("rerotate", on_crossing) else None,
                stops_at=draw(st.sampled_from([None, None, 3])),
                cancelled_after=draw(st.sampled_from([None] * 5 + [1, 4, 9])),
                priority=draw(st.integers(0, 2)),
            )
        )
    return asked


@st.composite
def pauses(draw: st.DrawFn) -> dict[int, PauseState]:
    """Who is served from which step on; in the end, everybody. Mostly nothing is said, and nobody may be kept out."""
    if draw(st.sampled_from([True, True, False])):
        return {}
    steps = draw(st.lists(st.integers(1, 40), max_size=4, unique=True))
    return {step: draw(st.sampled_from(PauseState)) for step in steps} | {41: PauseState.UNPAUSED}


@pytest.mark.parametrize(
    ("depth", "ahead", "model_runner"),
    [
        # Each pipeline and each runner once; the other three are slow.
        pytest.param(*pipeline, runner, id=f"{name}-{runner}", marks=() if runner == quick else pytest.mark.slow)
        for (name, pipeline), quick in zip(PIPELINES.items(), (1, 2, 2), strict=True)
        for runner in (1, 2)
    ],
)
def test_every_request_says_what_it_would_say_alone(
    depth: int, ahead: bool, model_runner: int, vllm_config: Any
) -> None:
    @settings(max_examples=80, database=None, derandomize=True)
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        deployment = data.draw(deployments())
        asked = data.draw(arrivals(deployment))
        block_size = data.draw(st.integers(1, 4))
        vllm_config.scheduler_config.max_num_seqs = data.draw(st.integers(2, 5))
        vllm_config.scheduler_config.max_num_batched_tokens = data.draw(st.sampled_from([6, 16, 40]))
        vllm_config.scheduler_config.policy = data.draw(st.sampled_from(["fcfs", "priority"]))
        vllm_config.scheduler_config.long_prefill_token_threshold = data.draw(st.sampled_from([0, 0, 3]))
        # An engine does not start with less than its longest request needs; and block 0 is vLLM's null block.
        num_spare_blocks = data.draw(st.sampled_from([40, 16, 4, 2, 1, 0, 0]))
        num_blocks = 1 + -(-deployment.max_model_len // block_size) + num_spare_blocks
        core = EngineCore(
            vllm_config,
            deployment,
            block_size=block_size,
            num_blocks=num_blocks,
            model_runner=model_runner,
            depth=depth,
            ahead=ahead,
        )
        resets = data.draw(st.sampled_from([(), (), (), (5,), (12,), (25,), (8, 9, 20)]))
        core.serve(asked, resets=resets, pauses=data.draw(pauses()))
        for index, one in enumerate(asked):
            said, response = core.said[f"r{index}"], core.responses[f"r{index}"]
            if "prefixes_reused" not in response:
                alone = said_alone(deployment, one)
                assert said == (alone if one.cancelled_after is None else alone[: len(said)])
        assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == num_blocks - 1
        assert ahead or resets or not core.num_ahead  # whose token is dropped by a reset computes it again

    holds()


CROWD = Deployment(
    rope_type="linear",
    scales=(1.0, 2.0),
    original_max_position_embeddings=40,
    max_model_len=80,
    headroom_tokens=1,
    rerotate_budget_tokens=100,
)


@pytest.mark.parametrize("model_runner", [1, 2])
def test_others_are_scheduled_ahead_while_one_crosses(model_runner: int, vllm_config: Any) -> None:
    vllm_config.scheduler_config.max_num_seqs, vllm_config.scheduler_config.max_num_batched_tokens = 4, 40
    asked = [Asked(0, TEXT[:8], 60), Asked(0, [1] * 4, 30)]
    core = EngineCore(vllm_config, CROWD, block_size=4, num_blocks=60, model_runner=model_runner, depth=2, ahead=True)
    core.serve(asked)
    assert core.responses["r0"]["crossings"] == [{"at": 40, "from": 1.0, "to": 2.0, "how": "rerotate"}]
    # All but the last token of each, and the one that had to be heard of before its request crossed.
    assert core.num_ahead == 60 - 1 + 30 - 1 - 1


@pytest.mark.parametrize("model_runner", [1, 2])
def test_whoever_makes_room_for_one_that_crosses_is_in_no_further_step(
    model_runner: int, vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_config.scheduler_config.max_num_seqs, vllm_config.scheduler_config.max_num_batched_tokens = 4, 40
    core = EngineCore(vllm_config, CROWD, block_size=4, num_blocks=22, model_runner=model_runner, depth=2, ahead=True)
    tried, to_copy = [], core.scheduler._blocks.to_copy

    def counted(request: Any, **room: int) -> Any:
        found = to_copy(request, **room)
        tried.append(found is not None)
        return found

    monkeypatch.setattr(core.scheduler._blocks, "to_copy", counted)
    # The second one reads the beginning of the first, which therefore has to be copied; the third fills the pool.
    core.serve([Asked(0, TEXT[:8], 60), Asked(18, [*TEXT[:8], 1], 30), Asked(1, [1] * 10, 38, "pin")])
    assert core.responses["r0"]["crossings"]
    assert tried == [False, True, False, True]  # in flight: enough when it is through; out of the way


@pytest.mark.parametrize(("depth", "ahead"), [PIPELINES["ahead"], PIPELINES["two-stages"]], ids=["ahead", "two-stages"])
def test_one_that_crosses_waits_for_a_crowd_no_longer_than_until_it_is_in_no_step(
    depth: int, ahead: bool, vllm_config: Any
) -> None:
    vllm_config.scheduler_config.max_num_seqs, vllm_config.scheduler_config.max_num_batched_tokens = 8, 256
    lengths = {"original_max_position_embeddings": 80, "max_model_len": 160, "rerotate_budget_tokens": 1000}
    crowded = dataclasses.replace(CROWD, **lengths)
    core = EngineCore(vllm_config, crowded, block_size=4, num_blocks=42, model_runner=2, depth=depth, ahead=ahead)
    # All begin as the first one does, whose blocks are to be copied therefore, and there are always more of them.
    prefix, draw = [(7 * index + 3) * index % 6 for index in range(60)], random.Random(24)
    core.admit("r0", Asked(0, prefix, 30))
    steps_until_said: Counter[int] = Counter()
    for number in itertools.count():
        for index in range(4 * number, 4 * number + 4):
            core.admit(f"w{index}", Asked(0, [*prefix, index % 6], draw.randint(3, 19), "pin"))
        core.step()
        steps_until_said[len(core.said["r0"])] += 1
        if "r0" in core.responses:
            break
    assert core.responses["r0"]["crossings"]
    num_said = 80 + 1 - len(prefix)  # with the token that has to be heard of before it crosses
    assert steps_until_said[num_said] <= 5


def test_nobody_finds_the_blocks_of_a_step_that_their_request_was_preempted_out_of(
    vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_config.scheduler_config.policy, vllm_config.scheduler_config.long_prefill_token_threshold = "priority", 16
    vllm_config.scheduler_config.max_num_seqs, vllm_config.scheduler_config.max_num_batched_tokens = 6, 96
    lengths = {"original_max_position_embeddings": 80, "max_model_len": 160}
    deployment = dataclasses.replace(CROWD, **lengths)
    num_forgotten = 0
    for seed in range(30):
        draw = random.Random(seed)

        def prompt(shortest: int, longest: int, draw: random.Random = draw) -> list[int]:
            return [draw.randint(0, 5) for _ in range(draw.randint(shortest, longest))]

        asked = [Asked(0, prompt(60, 100), 5, priority=10)]
        asked += [Asked(draw.randint(1, 3), prompt(3, 40), draw.randint(2, 25)) for _ in range(5)]
        core = EngineCore(vllm_config, deployment, block_size=4, num_blocks=42, model_runner=2, depth=1, ahead=False)
        preempt = core.scheduler._preempt_request

        def preempted(request: Any, *timing: Any, core: EngineCore = core, preempt: Any = preempt, **how: Any) -> None:
            nonlocal num_forgotten
            (blocks, _), *_ = core.scheduler._blocks.tables(request)
            uncomputed = blocks[request.num_computed_tokens // 4 :]
            num_forgotten += sum(block.block_hash is not None for block in uncomputed)
            preempt(request, *timing, **how)
            assert [block.block_hash for block in uncomputed] == [None] * len(uncomputed)

        monkeypatch.setattr(core.scheduler, "_preempt_request", preempted)
        core.serve(asked)
        assert all(core.said[f"r{index}"] == said_alone(deployment, one) for index, one in enumerate(asked))
    assert num_forgotten


@pytest.mark.parametrize(("depth", "ahead"), [PIPELINES["in-step"], PIPELINES["ahead"]], ids=["in-step", "ahead"])
def test_the_prefix_cache_is_forgotten_even_while_a_prefix_is_being_copied(
    depth: int, ahead: bool, vllm_config: Any
) -> None:
    vllm_config.scheduler_config.max_num_seqs, vllm_config.scheduler_config.max_num_batched_tokens = 4, 50
    reusing = dataclasses.replace(CROWD, prefix_reuse="rerotate", rerotate_budget_tokens=4)
    prompt = [index * index % 6 for index in range(41)]
    scaled, unscaled = Asked(0, prompt, 2), Asked(20, prompt[:30], 5)
    waited = set()
    for reset_before in range(20, 40):
        core = EngineCore(vllm_config, reusing, block_size=4, num_blocks=40, model_runner=2, depth=depth, ahead=ahead)
        reset, scheduler = core.scheduler.reset_prefix_cache, core.scheduler

        def noted(*, reset_running_requests: bool, reset: Any = reset, scheduler: Any = scheduler) -> Any:
            waited.update(one.status.name for one in scheduler.requests.values() if one.num_computed_tokens)
            done = reset(reset_running_requests=reset_running_requests)
            assert len(scheduler.waiting) == len(scheduler.requests)  # of vLLM's queues, that of who has no blocks
            assert not (scheduler.kv_holding_waiting or scheduler.deferred_waiting or scheduler._inflight_prefills)
            return done

        scheduler.reset_prefix_cache = noted
        core.serve([scaled, unscaled], resets={reset_before})
        if "prefixes_reused" not in core.responses["r1"]:
            assert core.said["r1"] == said_alone(reusing, unscaled)
    assert waited == {"WAITING_FOR_REMOTE_KVS", "RUNNING"}
    assert "prefixes_reused" in core.responses["r1"]


@pytest.mark.parametrize("on_crossing", ["rerotate", "recompute"])
@pytest.mark.parametrize(("depth", "ahead"), PIPELINES.values(), ids=PIPELINES)
def test_a_crossing_is_waited_for_once_and_tokens_count_where_they_were_computed(
    depth: int, ahead: bool, on_crossing: str, vllm_config: Any
) -> None:
    lengths = {"original_max_position_embeddings": 12, "max_model_len": 36, "on_crossing": on_crossing}
    deployment = dataclasses.replace(CROWD, scales=(1.0, 3.0), **lengths)
    core = EngineCore(vllm_config, deployment, block_size=4, num_blocks=60, model_runner=2, depth=depth, ahead=ahead)
    half = core.scheduler._half
    take_report, half.take_report = half.take_report, dict  # all of it at the end
    core.serve([Asked(0, TEXT[:7], 20), Asked(1, TEXT[:3], 2)])
    report = take_report()
    assert report["crossings"] == {f"1 3 {on_crossing}": 1} and len(report["crossing_wait_seconds"]) == 1
    # The long one says a token after each of 7 to 12 tokens at scale 1, and after each of 13 to 26 at scale 3.
    assert report["generation_tokens"] == {"1": 6 + 2, "3": 14}


computed_again_while_paused = pytest.mark.skipif(
    releases.PAUSES_ADMIT_NOBODY.is_here,
    reason="this vLLM serves nobody who has lost its blocks while it serves only requests under way",
)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("on_crossing", ["rerotate", pytest.param("recompute", marks=computed_again_while_paused)])
@pytest.mark.parametrize(("depth", "ahead"), [PIPELINES["in-step"], PIPELINES["ahead"]], ids=["in-step", "ahead"])
def test_a_pause_that_waits_for_requests_under_way_waits_for_those_that_cross(
    depth: int, ahead: bool, on_crossing: str, policy: str, vllm_config: Any
) -> None:
    vllm_config.scheduler_config.policy = policy
    pausing = {"block_size": 4, "num_blocks": 60, "model_runner": 2, "depth": depth, "ahead": ahead}
    lengths = {"original_max_position_embeddings": 12, "max_model_len": 36, "on_crossing": on_crossing}
    deployment = dataclasses.replace(CROWD, scales=(1.0, 3.0), **lengths)
    asked = Asked(0, TEXT[:7], 20)
    alone = said_alone(deployment, asked)
    crossed: list[dict[str, Any]] = []
    for num_steps in range(1, 20):
        core = EngineCore(vllm_config, deployment, **pausing)
        core.admit("under-way", asked)
        for _ in range(num_steps):
            core.step()
        core.admit("new", asked)
        core.scheduler.set_pause_state(PauseState.PAUSED_NEW)
        core.drain()
        assert core.said["under-way"] == alone and not core.said["new"]
        crossed += core.responses["under-way"]["crossings"]
        core.scheduler.set_pause_state(PauseState.UNPAUSED)
        core.drain()
        assert core.said["new"] == alone
    assert crossed


@computed_again_while_paused
def test_a_pause_also_waits_for_a_preempted_request_when_nobody_runs(vllm_config: Any) -> None:
    lengths = {"original_max_position_embeddings": 12, "max_model_len": 36, "on_crossing": "recompute"}
    deployment = dataclasses.replace(CROWD, scales=(1.0, 3.0), **lengths)
    asked = Asked(0, TEXT[:7], 20)
    nobody_ran = 0
    for num_steps in range(1, 16):
        core = EngineCore(vllm_config, deployment, block_size=4, num_blocks=10, model_runner=2, depth=1, ahead=False)
        core.admit("under-way", asked)
        for number in range(num_steps):
            if number == 3:  # takes the room that the first one needs, and soon ends
                core.admit("other", Asked(0, [1 - TEXT[0]] * 20, 4, "pin"))
            core.step()
        nobody_ran += not core.scheduler.running
        core.scheduler.set_pause_state(PauseState.PAUSED_NEW)
        core.drain()
        assert core.said["under-way"] == said_alone(deployment, asked)
    assert nobody_ran


@pytest.mark.skipif(not releases.PAUSES_ADMIT_NOBODY.is_here, reason="this vLLM serves whoever is under way")
def test_a_request_to_recompute_in_a_pause_that_admits_nobody_goes_on_afterwards(vllm_config: Any) -> None:
    lengths = {"original_max_position_embeddings": 12, "max_model_len": 36, "on_crossing": "recompute"}
    deployment = dataclasses.replace(CROWD, scales=(1.0, 3.0), **lengths)
    asked = Asked(0, TEXT[:7], 20)
    for num_steps in range(1, 20):
        core = EngineCore(vllm_config, deployment, block_size=4, num_blocks=60, model_runner=2, depth=1, ahead=False)
        core.admit("under-way", asked)
        for _ in range(num_steps):
            core.step()
        core.scheduler.set_pause_state(PauseState.PAUSED_NEW)
        core.drain()
        core.scheduler.set_pause_state(PauseState.UNPAUSED)
        core.drain()
        assert core.said["under-way"] == said_alone(deployment, asked)


def test_a_request_that_waits_for_room_is_hashed_at_other_scales_once(
    vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_config.scheduler_config.max_num_seqs, vllm_config.scheduler_config.max_num_batched_tokens = 4, 40
    reusing = dataclasses.replace(CROWD, prefix_reuse="rerotate")
    core = EngineCore(vllm_config, reusing, block_size=4, num_blocks=22, model_runner=2, depth=1, ahead=False)
    half, reuse = core.scheduler._half, core.scheduler._reuse
    hashed, at_other_scales = [], half.hashes_at_other_scales
    core.admit("runs", Asked(0, TEXT[:14], 60, "pin"))
    while len(core.said["runs"]) < 45:
        core.step()
    core.admit("waits", Asked(0, [1] * 38, 2))

    def counted(request: Any) -> Any:
        hashed.append(request.request_id)
        return at_other_scales(request)

    monkeypatch.setattr(half, "hashes_at_other_scales", counted)
    num_steps = 0
    while "runs" not in core.responses:
        core.step()
        num_steps += 1
        assert hashed == list(reuse._hashes) == ["waits"]
    assert num_steps > 10
    while not core.said["waits"]:
        core.step()
    assert hashed == ["waits"] and not reuse._hashes  # it runs


@pytest.mark.parametrize(("depth", "ahead"), PIPELINES.values(), ids=PIPELINES)
def test_blocks_before_a_copied_prefix_are_not_found_once_their_reader_has_crossed(
    depth: int, ahead: bool, vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_config.scheduler_config.max_num_seqs, vllm_config.scheduler_config.max_num_batched_tokens = 4, 200
    deployment = dataclasses.replace(CROWD, scales=(1.0, 2.0, 4.0), max_model_len=160, prefix_reuse="rerotate")
    core = EngineCore(vllm_config, deployment, block_size=4, num_blocks=90, model_runner=2, depth=depth, ahead=ahead)
    # The others compute all of their prompts, as where there is no room for copies.
    monkeypatch.setattr(core.scheduler._reuse, "_has_room", lambda found: found.request.request_id == "r2")
    text, draw = [index * index % 6 for index in range(40)], random.Random(5)

    def rest(count: int) -> list[int]:
        return [draw.randint(0, 5) for _ in range(count)]

    at_scale_2, at_scale_1 = Asked(0, text[:8] + rest(40), 2, "pin"), Asked(10, text[:30], 2, "pin")
    # Eight tokens of its prompt are cached at its scale, twenty behind them are copied from another; then it crosses.
    crossing, again = Asked(20, text[:32] + rest(20), 60), Asked(100, text[:8] + rest(42), 4, "pin")
    core.serve([at_scale_2, at_scale_1, crossing, again])
    assert core.responses["r2"]["prefixes_reused"] == [{"tokens": 20, "from": 1.0, "to": 2.0}]
    assert [each["to"] for each in core.responses["r2"]["crossings"]] == [4.0]
    assert core.said["r3"] == said_alone(deployment, again)

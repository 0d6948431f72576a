"""Our scheduler over models with sliding windows, chunks, states and keys that are not scaled.

What becomes of requests and blocks is vLLM's own doing here; what workers compute is a model of it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_runtime.kv.deployment import Deployment
from tests.kv.model_groups import MODELS, STATES, Group, Groups
from tests.kv.test_state_machine import deployments
from tests.vllm_adapter.in_scheduler.model_core import Asked, EngineCore, num_needed, said_alone
from tests.vllm_adapter.in_scheduler.test_scheduler_ahead import PIPELINES, TEXT, arrivals


@pytest.mark.slow
@pytest.mark.parametrize("model_runner", [1, 2])
@pytest.mark.parametrize(("depth", "ahead"), PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("groups", [*MODELS.values(), STATES][1:], ids=[*MODELS, "states"][1:])
def test_with_windows_and_states_every_request_says_what_it_would_say_alone(
    groups: Groups, depth: int, ahead: bool, model_runner: int, vllm_config: Any
) -> None:
    num_crossings = num_reuses = 0

    @settings(max_examples=25, database=None, derandomize=True)
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        nonlocal num_crossings, num_reuses
        deployment = data.draw(deployments())
        if groups is STATES:
            deployment = dataclasses.replace(deployment, prefix_reuse="exact")
        asked = data.draw(arrivals(deployment))
        # vLLM finds wrong prefixes where a chunk does not end with a block.
        block_size = data.draw(st.sampled_from([1, 2, 4] if any(group.chunk for group in groups) else [1, 2, 3, 4]))
        max_tokens = data.draw(st.sampled_from([6, 16, 40]))
        vllm_config.scheduler_config.max_num_seqs = data.draw(st.integers(2, 5))
        vllm_config.scheduler_config.max_num_batched_tokens = max_tokens
        vllm_config.scheduler_config.policy = data.draw(st.sampled_from(["fcfs", "priority"]))
        needed = [num_needed(group, deployment.max_model_len, block_size, depth * max_tokens) for group in groups]
        num_blocks = 1 + sum(needed) + data.draw(st.sampled_from([40, 16, 4, 1, 0, 0]))
        core = EngineCore(
            vllm_config,
            deployment,
            block_size=block_size,
            num_blocks=num_blocks,
            model_runner=model_runner,
            depth=depth,
            ahead=ahead,
            groups=groups,
        )
        core.serve(asked, resets=data.draw(st.sampled_from([(), (), (5,), (12, 25)])))
        for index, one in enumerate(asked):
            said, response = core.said[f"r{index}"], core.responses[f"r{index}"]
            num_crossings += len(response["crossings"])
            if "prefixes_reused" in response:
                num_reuses += 1
                continue
            alone = said_alone(deployment, one)
            assert said == (alone if one.cancelled_after is None else alone[: len(said)])
        assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == num_blocks - 1

    holds()
    assert num_crossings and (num_reuses or groups is STATES)


ALONE = Deployment(
    rope_type="linear",
    scales=(1.0, 3.0),
    original_max_position_embeddings=12,
    max_model_len=36,
    headroom_tokens=1,
    rerotate_budget_tokens=100,
)
WINDOWED: Groups = (Group(window=3), Group())


@pytest.mark.parametrize(
    ("groups", "num_turned"),
    [((Group(window=3),), 2), (WINDOWED, 2 + 12), ((Group(chunk=4), Group(scaled=False)), 0), (STATES, 12)],
    ids=["windowed", "every-other", "chunk-is-over", "states"],
)
def test_a_crossing_turns_the_scaled_keys_that_its_next_query_reads(
    groups: Groups, num_turned: int, vllm_config: Any
) -> None:
    core = EngineCore(
        vllm_config, ALONE, block_size=1, num_blocks=90, model_runner=2, depth=1, ahead=False, groups=groups
    )
    half, asked = core.scheduler._half, Asked(0, TEXT[:7], 20)
    take_report, half.take_report = half.take_report, dict  # all of it at the end
    core.serve([asked])
    report = take_report()
    assert core.responses["r0"]["crossings"] == [{"at": 12, "from": 1.0, "to": 3.0, "how": "rerotate"}]
    assert report.get("rerotated_tokens", {}).get("all", 0) == num_turned
    assert core.said["r0"] == said_alone(ALONE, asked)


def test_a_replay_has_room_where_states_of_past_tokens_are_not_kept(vllm_config: Any) -> None:
    vllm_config.scheduler_config.max_num_seqs, vllm_config.scheduler_config.max_num_batched_tokens = 2, 40
    core = EngineCore(
        vllm_config, ALONE, block_size=1, num_blocks=1 + 36 + 2, model_runner=2, depth=1, ahead=False, groups=STATES
    )
    asked = Asked(0, TEXT[:7], 29)
    core.serve([asked], resets={28})
    assert core.said["r0"] == said_alone(ALONE, asked)


def test_a_prefix_is_reused_in_a_pool_that_has_room_for_a_window_of_it(vllm_config: Any) -> None:
    vllm_config.scheduler_config.max_num_seqs, vllm_config.scheduler_config.max_num_batched_tokens = 4, 8
    reusing = dataclasses.replace(
        ALONE, scales=(1.0, 2.0), original_max_position_embeddings=40, max_model_len=80, prefix_reuse="rerotate"
    )
    prompt = [index * index % 6 for index in range(41)]
    # The prefix of 28 tokens takes 7 blocks and one in the window, its reader 8 and at most 4 in the window.
    core = EngineCore(
        vllm_config, reusing, block_size=4, num_blocks=1 + 20, model_runner=2, depth=1, ahead=False, groups=WINDOWED
    )
    core.serve([Asked(0, prompt, 2)])
    core.scheduler.kv_cache_manager.block_pool.null_block.ref_cnt = 0  # vLLM does not keep count of it
    core.admit("r1", Asked(0, prompt[:30], 5))
    core.drain()
    assert core.responses["r1"]["prefixes_reused"] == [{"tokens": 28, "from": 2.0, "to": 1.0}]


def test_blocks_that_have_left_a_window_do_not_come_free_again(vllm_config: Any) -> None:
    core = EngineCore(
        vllm_config, ALONE, block_size=1, num_blocks=90, model_runner=2, depth=1, ahead=False, groups=WINDOWED
    )
    core.admit("r0", Asked(0, TEXT[:7], 20))
    for _ in range(3):
        core.step()
    scheduler = core.scheduler
    scheduler.kv_cache_manager.block_pool.null_block.ref_cnt = 1  # vLLM does not keep count of it
    (window, _), (full, _) = scheduler._blocks.tables(scheduler.requests["r0"])
    held = [block for block in window + full if not block.is_null]
    assert len(held) < len(window + full)
    assert scheduler._blocks.num_freed(scheduler.requests["r0"]) == len(held)

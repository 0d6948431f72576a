"""Our scheduler over models with sliding windows, chunks, states and keys that are not scaled.

What becomes of requests and blocks is vLLM's own doing here; what workers compute is a model of it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kv.model_groups import MODELS, STATES, Groups
from tests.kv.test_state_machine import deployments
from tests.vllm_adapter.scheduling.model_core import EngineCore, num_needed, said_alone
from tests.vllm_adapter.scheduling.test_scheduler_ahead import PIPELINES, arrivals


@pytest.mark.parametrize("model_runner", [1, 2])
@pytest.mark.parametrize(("depth", "ahead"), PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("groups", [*MODELS.values(), STATES][1:], ids=[*MODELS, "states"][1:])
def test_with_windows_and_groups_without_keys_every_request_says_what_it_would_say_alone(
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
        block_size = data.draw(st.integers(1, 4))
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

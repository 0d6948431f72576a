"""The scheduler's half, driven as a scheduler would."""

from __future__ import annotations

import pytest

from posenc_runtime.kv.coordinator import ScaleCoordinator
from posenc_runtime.kv.ledger import MixedRotations
from tests.kv.test_deployment import YARN


@pytest.fixture
def coordinator() -> ScaleCoordinator:
    return ScaleCoordinator(YARN)


def test_a_steps_plan_gives_fresh_blocks_the_scale_of_their_request(coordinator: ScaleCoordinator) -> None:
    coordinator.admit("short", num_prompt_tokens=10, max_tokens=10)
    coordinator.admit("long", num_prompt_tokens=1500, max_tokens=10)
    coordinator.allocated("short", [1])
    coordinator.allocated("long", [2, 3])
    coordinator.allocated("short", [4])
    assert coordinator.take_plan().block_scales == {0: [1, 4], 2: [2, 3]}
    assert coordinator.take_plan().block_scales == {}


def test_blocks_of_the_prefix_cache_are_not_written_again(coordinator: ScaleCoordinator) -> None:
    coordinator.admit("first", num_prompt_tokens=600, max_tokens=10)
    coordinator.allocated("first", [1, 2])
    coordinator.finished("first", num_output_tokens=10)
    coordinator.take_plan()
    coordinator.admit("second", num_prompt_tokens=600, max_tokens=10)
    coordinator.allocated("second", [3])
    coordinator.hit("second", [1, 2])
    assert coordinator.take_plan().block_scales == {1: [3]}


def test_a_hit_across_scales_is_an_error_and_not_garbage(coordinator: ScaleCoordinator) -> None:
    coordinator.admit("short", num_prompt_tokens=100, max_tokens=10)
    coordinator.allocated("short", [1])
    coordinator.admit("long", num_prompt_tokens=100, max_tokens=1500)
    with pytest.raises(MixedRotations):
        coordinator.hit("long", [1])


def test_a_preempted_request_gets_its_scale_again_in_other_blocks(coordinator: ScaleCoordinator) -> None:
    coordinator.admit("long", num_prompt_tokens=1500, max_tokens=10)
    coordinator.allocated("long", [1])
    coordinator.preempted("long")
    coordinator.admit("short", num_prompt_tokens=10, max_tokens=10)
    coordinator.allocated("short", [1])
    coordinator.allocated("long", [2])
    assert coordinator.take_plan().block_scales == {2: [1, 2], 0: [1]}


def test_the_regime_of_a_request_follows_its_scale(coordinator: ScaleCoordinator) -> None:
    assert coordinator.admit("short", num_prompt_tokens=10, max_tokens=10) is None
    regime = coordinator.admit("long", num_prompt_tokens=600, max_tokens=10)
    assert regime is not None and regime.startswith("yarn:2:")


def test_a_finished_request_says_at_which_scale_it_ran(coordinator: ScaleCoordinator) -> None:
    coordinator.admit("long", num_prompt_tokens=1290, max_tokens=10)
    assert coordinator.finished("long", num_output_tokens=3) == {
        "rope_type": "yarn",
        "scale": 4.0,
        "admission_tokens": 1300,
        "crossings": [],
    }


def test_a_report_counts_by_scale_and_only_what_is_new(coordinator: ScaleCoordinator) -> None:
    coordinator.admit("long", num_prompt_tokens=600, max_tokens=10)
    coordinator.prefilling("long", num_hit_tokens=64)
    coordinator.prefilling("long", num_hit_tokens=64)  # resumed after preemption: counted once
    coordinator.allocated("long", [1, 2])
    coordinator.generated("long", 3)
    coordinator.generated("long", 3)
    assert coordinator.take_report() == {
        "requests": {"2": 1},
        "prompt_tokens": {"2": 600},
        "generation_tokens": {"2": 3},
        "prefix_hit_tokens": {"2": 64},
        "kv_blocks": {"1": 0, "2": 2, "4": 0},
    }
    assert coordinator.take_report() == {}
    coordinator.finished("long", num_output_tokens=5)
    assert coordinator.take_report() == {"generation_tokens": {"2": 2}, "kv_blocks": {"1": 0, "2": 0, "4": 0}}


def test_a_request_that_never_ran_can_be_finished(coordinator: ScaleCoordinator) -> None:
    coordinator.admit("waiting", num_prompt_tokens=10, max_tokens=10)
    assert coordinator.finished("waiting", num_output_tokens=0)["scale"] == 1.0

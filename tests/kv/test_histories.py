"""Which cached beginnings a request may go on from, and what it says of them. Scales 1, 2, 4 of 512 tokens."""

from __future__ import annotations

import dataclasses

import pytest

from posenc_runtime.kv.coordinator import ScaleCoordinator
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.histories import History
from posenc_runtime.kv.regime import history, regime
from tests.kv.admitting import admit
from tests.kv.test_deployment import YARN

CONTINUING = dataclasses.replace(YARN, prefix_reuse="continue", rerotate_budget_tokens=2048)


@pytest.fixture
def coordinator() -> ScaleCoordinator:
    made = ScaleCoordinator(CONTINUING, num_blocks=64)
    made.shares_histories = True
    return made


def test_a_new_request_may_go_on_where_one_request_would_be_now(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "turn", num_prompt_tokens=1500, max_tokens=10)
    assert list(coordinator.histories("turn", 1500)) == [
        # (2, 2) is the request's own; of the others, each ends where a request of it would cross.
        History(first_index=1, scale_index=2, fewest_tokens=1024, most_tokens=1499),
        History(first_index=1, scale_index=1, fewest_tokens=750, most_tokens=1023),
        History(first_index=0, scale_index=2, fewest_tokens=1024, most_tokens=1499),
        History(first_index=0, scale_index=1, fewest_tokens=750, most_tokens=1023),
    ]


@pytest.mark.parametrize("on_crossing", ["pin", "recompute"])
def test_whoever_never_turns_keys_goes_on_from_nobody(coordinator: ScaleCoordinator, on_crossing: str) -> None:
    admit(coordinator, "turn", num_prompt_tokens=1500, max_tokens=10, on_crossing=on_crossing)
    assert list(coordinator.histories("turn", 1500)) == []


def test_a_preempted_request_goes_on_from_its_own_first_scale_alone(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "turn", num_prompt_tokens=600, max_tokens=1000)
    coordinator.prefilling("turn", num_hit_tokens=0)
    coordinator.preempted("turn")
    assert list(coordinator.histories("turn", 1100)) == [History(1, 2, 1024, 1099)]


def test_a_preempted_request_lists_the_crossings_that_others_made_for_it(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "turn", num_prompt_tokens=600, max_tokens=1000)
    coordinator.prefilling("turn", num_hit_tokens=0)
    coordinator.preempted("turn")
    coordinator.go_on_from("turn", History(1, 2, 1024, 1024), num_tokens=1024)
    crossing = {"at": 1024, "from": 2.0, "to": 4.0, "how": "rerotate"}
    assert coordinator.said_so_far("turn")["crossings"] == [crossing]
    assert coordinator.said_so_far("turn")["scale"] == 4.0


def test_a_replay_lists_no_crossing_that_happened_before_the_request(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "turn", num_prompt_tokens=600, max_tokens=10)
    coordinator.go_on_from("turn", History(0, 1, 512, 599), num_tokens=592)
    coordinator.prefilling("turn", num_hit_tokens=592)
    coordinator.preempted("turn")
    coordinator.go_on_from("turn", History(0, 1, 512, 599), num_tokens=520)
    said = coordinator.finished("turn", num_output_tokens=10)
    assert (said["crossings"], said["scale"]) == ([], 2.0)
    assert said["continued"] == {"tokens": 592, "first_scale": 1.0, "scale": 2.0}


def test_a_request_that_did_not_run_yet_may_still_begin_at_its_own_scale(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "turn", num_prompt_tokens=600, max_tokens=10)
    coordinator.go_on_from("turn", History(0, 1, 512, 599), num_tokens=592)
    assert coordinator.begin("turn") == 1
    said = coordinator.finished("turn", num_output_tokens=0)
    assert said["scale"] == 2.0 and "continued" not in said


def test_tokens_of_a_turn_count_at_the_scale_where_it_goes_on(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "turn", num_prompt_tokens=500, max_tokens=100)  # for 600 tokens at most: scale 2
    coordinator.go_on_from("turn", History(0, 0, 250, 499), num_tokens=480)
    coordinator.prefilling("turn", num_hit_tokens=480)
    report = coordinator.take_report()
    assert report["prompt_tokens"] == {"1": 500}
    assert report["prefix_hit_tokens"] == {"1": 480}


def test_a_history_has_the_name_of_its_scale_and_of_its_first_one() -> None:
    assert history(CONTINUING, 0, 0) is None
    assert history(CONTINUING, 2, 2) == regime(CONTINUING, 2)
    names = {history(CONTINUING, first, scale) for scale in range(3) for first in range(scale + 1)}
    assert len(names) == 6


@pytest.mark.parametrize("on_crossing", ["pin", "recompute"])
def test_turns_go_on_only_where_requests_cross_by_rotation(on_crossing: str) -> None:
    with pytest.raises(ValueError, match=f"prefix_reuse must be exact or rerotate where on_crossing is {on_crossing}"):
        Deployment.from_mapping(CONTINUING.to_mapping() | {"on_crossing": on_crossing})

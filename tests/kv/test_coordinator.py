"""The coordinator, driven as a scheduler would."""

from __future__ import annotations

import dataclasses

import pytest

from posenc_runtime.kv.coordinator import ScaleCoordinator
from posenc_runtime.kv.ledger import MixedRotations
from posenc_runtime.kv.moves import BlockMove, Moves
from posenc_runtime.kv.step_plan import Progress
from tests.kv.admitting import admit
from tests.kv.test_deployment import YARN as MEASURED

YARN = dataclasses.replace(MEASURED, rerotate_budget_tokens=2048)


@pytest.fixture
def coordinator() -> ScaleCoordinator:
    return ScaleCoordinator(YARN, num_blocks=16)


def test_a_steps_plan_gives_fresh_blocks_the_scale_of_their_request(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "short", num_prompt_tokens=10, max_tokens=10)
    admit(coordinator, "long", num_prompt_tokens=1500, max_tokens=10)
    coordinator.allocated("short", [1])
    coordinator.allocated("long", [2, 3])
    coordinator.allocated("short", [4])
    assert coordinator.take_plan().block_scales == {0: [1, 4], 2: [2, 3]}
    assert coordinator.take_plan().block_scales == {}


def test_the_null_block_has_no_scale_for_everybody_has_it(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "long", num_prompt_tokens=1500, max_tokens=10)
    coordinator.allocated("long", [0, 0, 2])
    assert coordinator.take_plan().block_scales == {2: [2]}


def test_blocks_of_the_prefix_cache_are_not_written_again(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "first", num_prompt_tokens=600, max_tokens=10)
    coordinator.allocated("first", [1, 2])
    coordinator.finished("first", num_output_tokens=10)
    coordinator.take_plan()
    admit(coordinator, "second", num_prompt_tokens=600, max_tokens=10)
    coordinator.allocated("second", [3])
    coordinator.hit("second", [1, 2])
    assert coordinator.take_plan().block_scales == {1: [3]}


def test_a_hit_across_scales_is_an_error_and_not_garbage(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "short", num_prompt_tokens=100, max_tokens=10)
    coordinator.allocated("short", [1])
    admit(coordinator, "long", num_prompt_tokens=600, max_tokens=10)
    with pytest.raises(MixedRotations):
        coordinator.hit("long", [1])


def test_a_preempted_request_gets_its_scale_again_in_other_blocks(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "long", num_prompt_tokens=1500, max_tokens=10)
    coordinator.allocated("long", [1])
    coordinator.preempted("long")
    admit(coordinator, "short", num_prompt_tokens=10, max_tokens=10)
    coordinator.allocated("short", [1])
    coordinator.allocated("long", [2])
    assert coordinator.take_plan().block_scales == {0: [1], 2: [2]}


def test_the_regime_of_a_request_follows_its_scale(coordinator: ScaleCoordinator) -> None:
    assert admit(coordinator, "short", num_prompt_tokens=10, max_tokens=10) is None
    regime = admit(coordinator, "long", num_prompt_tokens=600, max_tokens=10)
    assert regime is not None and regime.startswith("yarn:2:")


def test_a_finished_request_says_at_which_scale_it_ran(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "long", num_prompt_tokens=1290, max_tokens=10)
    assert coordinator.finished("long", num_output_tokens=3) == {
        "rope_type": "yarn",
        "scale": 4.0,
        "admission_tokens": 1300,
        "crossings": [],
    }


def test_a_report_counts_by_scale_and_only_what_is_new(coordinator: ScaleCoordinator) -> None:
    admit(coordinator, "long", num_prompt_tokens=600, max_tokens=10)
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
    admit(coordinator, "waiting", num_prompt_tokens=10, max_tokens=10)
    assert coordinator.finished("waiting", num_output_tokens=0)["scale"] == 1.0


def move(source: int, target: int, first_position: int = 0) -> BlockMove:
    return BlockMove(group=0, source=source, target=target, first_position=first_position, num_tokens=256)


def moves(*each: BlockMove) -> Moves:
    return Moves.of(each)


def at_the_end_of_its_scale(coordinator: ScaleCoordinator, request_id: str, block_ids: list[int]) -> None:
    admit(coordinator, request_id, num_prompt_tokens=500, max_tokens=2000)
    coordinator.allocated(request_id, block_ids)
    coordinator.take_plan()


@pytest.fixture
def growing() -> ScaleCoordinator:
    return ScaleCoordinator(dataclasses.replace(YARN, headroom_tokens=12), num_blocks=16)


def test_a_request_is_due_when_its_next_token_would_pass_the_length_of_its_scale(growing: ScaleCoordinator) -> None:
    at_the_end_of_its_scale(growing, "chat", [1, 2])
    assert growing.due("chat", 511) is None
    assert growing.due("chat", 512) == 1
    assert growing.due("chat", 1024) == 2  # as after a preemption with a longer history
    assert growing.allowance("chat", 500, 100) == 12
    assert growing.allowance("chat", 512, 1) == 0


def test_a_crossing_rotates_what_is_its_own_and_copies_what_is_not(growing: ScaleCoordinator) -> None:
    at_the_end_of_its_scale(growing, "chat", [1, 2])
    regime = growing.rerotate("chat", 1, moves(move(1, 7), move(2, 2, 256)), num_tokens=512)
    assert regime.startswith("yarn:2:") and "private" in regime
    assert growing.advance() == Progress(read=[1], crossed=["chat"])
    plan = growing.take_plan()
    assert [(r.from_index, r.to_index, [(m.source, m.target) for m in r.moves]) for r in plan.rotations] == [
        (0, 1, [(1, 7), (2, 2)])
    ]
    assert plan.block_scales == {1: [7, 2]}
    assert growing.allowance("chat", 512, 600) == 512
    assert growing.finished("chat", num_output_tokens=13)["crossings"] == [
        {"at": 512, "from": 1.0, "to": 2.0, "how": "rerotate"}
    ]


def test_a_prefix_of_another_scale_is_copied_and_its_source_must_carry_that_scale(
    growing: ScaleCoordinator,
) -> None:
    at_the_end_of_its_scale(growing, "short", [1, 2])
    growing.take_plan()
    admit(growing, "long", num_prompt_tokens=900, max_tokens=10)
    regime = growing.reuse("long", 0, moves(move(1, 7), move(2, 8, 256)), num_tokens=512)
    assert regime.startswith("yarn:2:") and "private" in regime
    assert growing.allowance("long", 512, 388) == 0
    assert growing.advance() == Progress(read=[1, 2], reused=["long"])
    assert growing.take_plan().block_scales == {1: [7, 8]}
    growing.hit("long", [7, 8])
    growing.prefilling("long", num_hit_tokens=512)
    report = growing.take_report()
    assert report["prefix_reused_tokens"] == {"1 2": 512} and "prefix_hit_tokens" not in report
    assert not growing.can_be_found("long")
    admit(growing, "other", num_prompt_tokens=900, max_tokens=10)
    growing.reuse("other", 2, moves(move(1, 9)), num_tokens=256)
    with pytest.raises(
        MixedRotations, match="copies block 1 as one of scale number 2, but the block has scale number 0"
    ):
        growing.advance()
    assert growing.finished("long", num_output_tokens=10)["prefixes_reused"] == [
        {"tokens": 512, "from": 1.0, "to": 2.0}
    ]


def test_a_copied_prefix_given_up_before_its_request_ran_is_not_in_the_response(
    growing: ScaleCoordinator,
) -> None:
    at_the_end_of_its_scale(growing, "short", [1, 2])
    for name in ("without", "long"):
        admit(growing, name, num_prompt_tokens=900, max_tokens=10)
        growing.reuse(name, 0, moves(move(1, 7)), num_tokens=256)
        growing.advance()
        growing.preempted(name)
        assert "prefixes_reused" not in growing.said_so_far(name)
    growing.prefilling("without", num_hit_tokens=0)
    assert "prefixes_reused" not in growing.said_so_far("without")
    assert "prefix_reused_tokens" not in growing.take_report()
    growing.reuse("long", 0, moves(move(2, 7, 256)), num_tokens=256)
    growing.advance()
    growing.prefilling("long", num_hit_tokens=256)
    growing.preempted("long")
    assert [reused["tokens"] for reused in growing.said_so_far("long")["prefixes_reused"]] == [256]  # it has run


def test_a_request_does_not_run_until_all_of_its_keys_are_turned(growing: ScaleCoordinator) -> None:
    slow = ScaleCoordinator(dataclasses.replace(growing.deployment, rerotate_budget_tokens=256), num_blocks=16)
    at_the_end_of_its_scale(slow, "chat", [1, 2])
    slow.rerotate("chat", 1, moves(move(1, 1), move(2, 2, 256)), num_tokens=512)
    assert slow.advance() == Progress()
    assert slow.allowance("chat", 512, 1) == 0 and slow.due("chat", 512) is None
    with pytest.raises(MixedRotations, match="chat was scheduled for tokens 512 to 513, but the request is crossing"):
        slow.scheduled("chat", 512, 1)
    assert slow.advance() == Progress(crossed=["chat"])
    slow.scheduled("chat", 512, 1)


def test_a_block_that_somebody_else_reads_is_never_turned_in_place(growing: ScaleCoordinator) -> None:
    at_the_end_of_its_scale(growing, "chat", [1, 2])
    admit(growing, "reader", num_prompt_tokens=500, max_tokens=1)
    growing.hit("reader", [1])
    growing.rerotate("chat", 1, moves(move(1, 1), move(2, 2, 256)), num_tokens=512)
    with pytest.raises(
        MixedRotations, match="re-rotates keys into block 1, but another request holds the block: reader"
    ):
        growing.advance()


def test_a_preempted_request_begins_at_its_first_scale_and_says_its_crossing_once(growing: ScaleCoordinator) -> None:
    first = admit(growing, "chat", num_prompt_tokens=500, max_tokens=2000)
    growing.allocated("chat", [1, 2])
    growing.rerotate("chat", 1, moves(move(1, 7), move(2, 2, 256)), num_tokens=512)
    growing.advance()
    assert growing.preempted("chat") == (first, [])
    assert growing.due("chat", 0) is None and growing.can_be_found("chat")
    growing.allocated("chat", [3, 4])
    growing.rerotate("chat", 1, moves(move(3, 3), move(4, 4, 256)), num_tokens=512)
    growing.advance()
    report = growing.take_report()
    assert report["crossings"] == {"1 2 rerotate": 1} and report["rerotated_tokens"] == {"all": 1024}
    assert len(growing.finished("chat", num_output_tokens=20)["crossings"]) == 1


def test_whoever_ends_in_the_middle_of_a_crossing_leaves_no_source_behind(growing: ScaleCoordinator) -> None:
    slow = ScaleCoordinator(dataclasses.replace(growing.deployment, rerotate_budget_tokens=256), num_blocks=16)
    at_the_end_of_its_scale(slow, "chat", [1, 2])
    slow.rerotate("chat", 1, moves(move(1, 7), move(2, 8, 256)), num_tokens=512)
    assert slow.advance() == Progress(read=[1])
    assert slow.abandoned("chat") == [2]
    assert slow.finished("chat", num_output_tokens=12)["crossings"] == []
    assert slow.advance() == Progress()


def test_a_recomputed_request_begins_again_at_its_new_scale(growing: ScaleCoordinator) -> None:
    admit(growing, "chat", num_prompt_tokens=500, max_tokens=2000, on_crossing="recompute")
    growing.allocated("chat", [1, 2])
    regime = growing.recompute("chat", 1, num_tokens=512)
    assert regime is not None and regime.startswith("yarn:2:") and "private" not in regime
    assert growing.length_of_scale("chat") == 1024
    growing.allocated("chat", [3, 4, 5])
    assert growing.take_plan().block_scales[1] == [3, 4, 5]
    said = growing.finished("chat", num_output_tokens=13)
    assert said["scale"] == 2.0 and said["crossings"] == [{"at": 512, "from": 1.0, "to": 2.0, "how": "recompute"}]

"""The state machine sees what it is there for: with a fault in the decisions or in their use it goes red."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from posenc_runtime.kv import admission
from posenc_runtime.kv import coordinator as coordinator_module
from posenc_runtime.kv.coordinator import ScaleCoordinator
from posenc_runtime.kv.counts import TOTAL
from posenc_runtime.kv.crossing import Crossing, CrossingQueue
from posenc_runtime.kv.ledger import BlockLedger, MixedRotations
from posenc_runtime.kv.moves import Moves
from posenc_runtime.kv.regime import regime
from tests.kv import model_crossings, twins
from tests.kv.model_engine import ModelEngine
from tests.kv.model_request import Broken, Request
from tests.kv.test_state_machine import Serving

pytestmark = pytest.mark.slow

Plant = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, Plant] = {}


def fault(plant: Plant) -> Plant:
    FAULTS[plant.__name__.replace("_", " ")] = plant
    return plant


@fault
def shared_blocks_are_turned_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_crossings, "blocks_to_copy", lambda held, **_: np.zeros(len(held), dtype=np.bool_))


@fault
def a_request_is_not_asked_what_is_to_happen_when_it_crosses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "choose_on_crossing", lambda deployment, asked: deployment.on_crossing)


@fault
def blocks_turned_in_place_stay_in_the_prefix_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelEngine, "_evict", lambda self, block_ids: None)


@fault
def a_crossing_leads_into_a_regime_that_others_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coordinator_module, "private", lambda deployment, index, number: regime(deployment, index))


@fault
def all_scales_have_one_regime(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coordinator_module, "regime", lambda deployment, index: None)


@fault
def a_preempted_request_resumes_at_the_scale_it_was_at(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator.preempted

    def preempted(self: ScaleCoordinator, request_id: str) -> Any:
        running = self._requests[request_id]
        running.first_index = running.scale_index
        return stock(self, request_id)

    patch.setattr(ScaleCoordinator, "preempted", preempted)


@fault
def a_recomputed_request_is_preempted_to_the_scale_before(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator.recompute

    def recompute(self: ScaleCoordinator, request_id: str, to_index: int, **rest: Any) -> Any:
        first_index = self._requests[request_id].first_index
        name = stock(self, request_id, to_index, **rest)
        self._requests[request_id].first_index = first_index
        return name

    patch.setattr(ScaleCoordinator, "recompute", recompute)


@fault
def a_request_runs_while_it_crosses(patch: pytest.MonkeyPatch) -> None:
    def allowance(self: ScaleCoordinator, request_id: str, num_computed_tokens: int, num_new_tokens: int) -> int:
        length = self._scale_set.lengths[self._requests[request_id].scale_index]
        return max(min(num_new_tokens, length - num_computed_tokens), 0)

    patch.setattr(ScaleCoordinator, "allowance", allowance)


@fault
def a_request_is_looked_at_one_step_late(patch: pytest.MonkeyPatch) -> None:
    stock = coordinator_module.steps_until_due
    patch.setattr(coordinator_module, "steps_until_due", lambda *lengths, **drafts: stock(*lengths, **drafts) + 1)


@fault
def a_request_that_goes_on_after_its_crossing_is_never_looked_at_again(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator.advance

    def advance(self: ScaleCoordinator) -> Any:
        progress = stock(self)
        for request_id in progress.crossed:
            self._calendar.forget(request_id)
        return progress

    patch.setattr(ScaleCoordinator, "advance", advance)


@fault
def a_block_that_was_read_is_not_let_go(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockLedger, "_still", lambda self, blocks, since: blocks[:0])


@fault
def a_request_crosses_one_token_late(patch: pytest.MonkeyPatch) -> None:
    due, allowance = ScaleCoordinator.due, ScaleCoordinator.allowance
    patch.setattr(ScaleCoordinator, "due", lambda self, name, computed: due(self, name, computed - 1))
    patch.setattr(
        ScaleCoordinator, "allowance", lambda self, name, computed, new: allowance(self, name, computed - 1, new)
    )


@fault
def sources_are_given_back_before_they_are_read(patch: pytest.MonkeyPatch) -> None:
    begin, advance = ModelEngine._rerotate, ScaleCoordinator.advance

    def early(self: ModelEngine, request: Request, to_index: int) -> None:
        begin(self, request, to_index)
        if request.turning:
            self.pool.give_back(request.turning.unread)

    patch.setattr(ModelEngine, "_rerotate", early)
    patch.setattr(ScaleCoordinator, "advance", lambda self: dataclasses.replace(advance(self), read=[]))
    patch.setattr(CrossingQueue, "drop", drop_silently)


def drop_silently(self: CrossingQueue, request_id: str) -> list[int]:
    self._crossings.pop(request_id, None)
    return []


@fault
def sources_are_never_given_back(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator.advance
    patch.setattr(ScaleCoordinator, "advance", lambda self: dataclasses.replace(stock(self), read=[]))


@fault
def sources_of_a_dropped_crossing_are_never_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CrossingQueue, "drop", drop_silently)


@fault
def a_crossing_goes_on_without_its_request(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CrossingQueue, "drop", lambda self, request_id: [])


@fault
def workers_do_not_hear_of_the_scale_of_turned_blocks(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator.advance

    def advance(self: ScaleCoordinator) -> Any:
        assigned = dict(self._assigned)
        result = stock(self)
        self._assigned = assigned
        return result

    patch.setattr(ScaleCoordinator, "advance", advance)


@fault
def a_block_handed_on_in_the_step_of_its_move_keeps_the_scale_of_the_move(patch: pytest.MonkeyPatch) -> None:
    def allocated(self: ScaleCoordinator, request_id: str, block_ids: Sequence[int]) -> None:
        scale_index = self._requests[request_id].scale_index
        self._ledger.write(request_id, block_ids, scale_index)
        for block_id in block_ids:
            self._assigned.setdefault(block_id, scale_index)

    patch.setattr(ScaleCoordinator, "allocated", allocated)


@fault
def keys_are_turned_as_if_they_came_from_the_first_scale(patch: pytest.MonkeyPatch) -> None:
    stock = CrossingQueue.begin
    patch.setattr(
        CrossingQueue, "begin", lambda self, crossing: stock(self, dataclasses.replace(crossing, from_index=0))
    )


@fault
def keys_are_turned_as_if_their_block_were_the_first(patch: pytest.MonkeyPatch) -> None:
    stock = CrossingQueue.begin

    def begin(self: CrossingQueue, crossing: Crossing) -> None:
        crossing.moves = Moves.of(move._replace(first_position=0) for move in crossing.moves)
        stock(self, crossing)

    patch.setattr(CrossingQueue, "begin", begin)


@fault
def a_block_larger_than_the_budget_is_never_turned(patch: pytest.MonkeyPatch) -> None:
    stock = CrossingQueue.advance

    def advance(self: CrossingQueue, budget_tokens: int) -> Any:
        first = next(iter(self._crossings.values()), None)
        if first and first.moves.num_tokens[first.num_begun] > budget_tokens:
            return [], []
        return stock(self, budget_tokens)

    patch.setattr(CrossingQueue, "advance", advance)


@fault
def a_replay_finds_all_of_its_first_scale_in_the_prefix_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelEngine, "_length_of_scale", lambda self, request: len(request.tokens))


@fault
def a_replayed_crossing_is_said_again(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator._record

    def record(self: ScaleCoordinator, running: Any, *crossing: Any) -> None:
        said, running.crossings = running.crossings, []
        stock(self, running, *crossing)
        running.crossings = said + running.crossings

    patch.setattr(ScaleCoordinator, "_record", record)


@fault
def the_ledger_forgets_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockLedger, "release", lambda self, request_id: None)


@fault
def a_resumed_prompt_is_counted_again(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator.prefilling

    def prefilling(self: ScaleCoordinator, request_id: str, *, num_hit_tokens: int) -> None:
        self._requests[request_id].prefill_counted = False
        stock(self, request_id, num_hit_tokens=num_hit_tokens)

    patch.setattr(ScaleCoordinator, "prefilling", prefilling)


@fault
def copies_are_counted_that_were_never_made(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator.rerotate

    def rerotate(self: ScaleCoordinator, request_id: str, to_index: int, moves: Moves, **rest: Any) -> str:
        self._counts.copied_blocks[TOTAL] += int(moves.copies.sum())
        return stock(self, request_id, to_index, moves, **rest)

    patch.setattr(ScaleCoordinator, "rerotate", rerotate)


@fault
def a_reused_prefix_leads_into_a_regime_that_others_share(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator.reuse

    def reuse(self: ScaleCoordinator, request_id: str, *args: Any, **rest: Any) -> str | None:
        stock(self, request_id, *args, **rest)
        return regime(self.deployment, self._requests[request_id].first_index)

    patch.setattr(ScaleCoordinator, "reuse", reuse)


@fault
def a_reused_prefix_is_taken_for_one_of_the_first_scale(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator.reuse
    patch.setattr(
        ScaleCoordinator,
        "reuse",
        lambda self, request_id, from_index, moves, **rest: stock(self, request_id, 0, moves, **rest),
    )


@fault
def reused_tokens_are_counted_as_hits(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator.prefilling

    def prefilling(self: ScaleCoordinator, request_id: str, *, num_hit_tokens: int) -> None:
        self._requests[request_id].num_reused_tokens = 0
        stock(self, request_id, num_hit_tokens=num_hit_tokens)

    patch.setattr(ScaleCoordinator, "prefilling", prefilling)


@fault
def the_headroom_does_not_decide(patch: pytest.MonkeyPatch) -> None:
    stock = admission.admit

    def admit(deployment: Any, **rest: Any) -> Any:
        return stock(dataclasses.replace(deployment, headroom_tokens=1000), **rest)

    patch.setattr(admission, "admit", admit)


@fault
def the_ledger_does_not_learn_what_has_left_a_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockLedger, "hold_only", lambda self, request_id, block_ids, alone: None)


@fault
def the_ledger_learns_only_what_the_crossing_request_has_lost(patch: pytest.MonkeyPatch) -> None:
    stock = BlockLedger.hold_only
    patch.setattr(BlockLedger, "hold_only", lambda self, name, block_ids, alone: stock(self, name, block_ids, []))


@fault
def the_ledger_learns_only_what_others_have_lost(patch: pytest.MonkeyPatch) -> None:
    stock = BlockLedger.hold_only

    def hold_only(self: BlockLedger, request_id: str, block_ids: Sequence[int], alone: Sequence[int]) -> None:
        held = self._holdings.get(request_id)
        kept = np.concatenate(list(self._held(held))).tolist() if held else []
        stock(self, request_id, sorted({*kept, *block_ids}), alone)

    patch.setattr(BlockLedger, "hold_only", hold_only)


@fault
def a_crossing_without_moves_stays_at_its_scale(patch: pytest.MonkeyPatch) -> None:
    stock = ScaleCoordinator.advance

    def advance(self: ScaleCoordinator) -> Any:
        crossings = self._crossing._crossings
        before = {name: self._requests[name].scale_index for name in crossings if not len(crossings[name].moves)}
        progress = stock(self)
        for name, scale_index in before.items():
            self._requests[name].scale_index = scale_index
        return progress

    patch.setattr(ScaleCoordinator, "advance", advance)


@fault
def keys_that_are_not_scaled_are_turned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelEngine, "_is_scaled", lambda self, number: True)


@fault
def the_coordinator_hears_of_blocks_that_are_not_scaled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelEngine, "_told_groups", lambda self: range(len(self.groups)))


@fault
def prefixes_that_are_not_scaled_are_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelEngine, "_is_copied", lambda self, group: True)


# Faults that a search finds only after hundreds of examples, and what such an example came down to.
RARE = {
    a_block_handed_on_in_the_step_of_its_move_keeps_the_scale_of_the_move: twins.three_where_two_can_run,
    a_replay_finds_all_of_its_first_scale_in_the_prefix_cache: twins.two_where_no_block_is_spare,
    a_crossing_without_moves_stays_at_its_scale: twins.one_whose_scaled_keys_are_all_in_a_chunk_that_is_over,
}


def search() -> None:
    small = settings(
        max_examples=400,
        stateful_step_count=30,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(Serving, settings=small)


@pytest.mark.parametrize("plant", FAULTS.values(), ids=FAULTS.keys())
def test_the_state_machine_goes_red_when(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    # A coordinator that is asked about a request that has ended stops the engine, too.
    with pytest.raises((Broken, MixedRotations, KeyError)):
        RARE.get(plant, search)()


@pytest.mark.parametrize("shown", RARE.values())
def test_without_a_fault_nothing_is_wrong_with_what_shows_a_rare_one(shown: Callable[[], None]) -> None:
    shown()

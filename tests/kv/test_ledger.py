"""The scale that every block carries."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_runtime.kv.ledger import NULL_BLOCK, BlockLedger, MixedRotations


@pytest.fixture
def ledger() -> BlockLedger:
    return BlockLedger(num_blocks=64)


def test_a_shared_block_counts_once_and_until_its_last_holder_has_gone(ledger: BlockLedger) -> None:
    ledger.write("a", [1, 2], 1)
    ledger.read("b", [1], 1)
    assert ledger.num_held(1) == 2
    ledger.release("a")
    assert ledger.num_held(1) == 1
    ledger.release("b")
    assert ledger.num_held(1) == 0


def test_a_block_keeps_its_scale_for_the_prefix_cache_after_its_request_has_gone(ledger: BlockLedger) -> None:
    ledger.write("a", [1], 1)
    ledger.release("a")
    ledger.read("b", [1], 1)
    assert ledger.num_held(1) == 1


def test_reading_a_block_of_another_scale_is_an_error(ledger: BlockLedger) -> None:
    ledger.write("a", [1], 1)
    with pytest.raises(
        MixedRotations, match=r"request b reads keys of scale number 2, but block 1 .* has scale number 1"
    ):
        ledger.read("b", [1], 2)


def test_reading_a_block_that_was_never_written_is_an_error(ledger: BlockLedger) -> None:
    with pytest.raises(MixedRotations, match="has scale number None"):
        ledger.read("b", [5], 0)


def test_a_fresh_block_is_lost_to_who_held_it_and_stays_lost_when_that_request_ends(ledger: BlockLedger) -> None:
    ledger.write("a", [1, 2], 1)
    ledger.write("b", [1], 2)  # the window of a moved past block 1
    assert (ledger.num_held(1), ledger.num_held(2)) == (1, 1)
    ledger.release("a")
    assert (ledger.num_held(1), ledger.num_held(2)) == (0, 1)


def test_a_block_that_was_given_back_takes_any_scale(ledger: BlockLedger) -> None:
    ledger.write("a", [1], 1)
    ledger.release("a")
    ledger.write("b", [1], 2)
    assert (ledger.num_held(1), ledger.num_held(2)) == (0, 1)


def test_the_null_block_carries_nothing(ledger: BlockLedger) -> None:
    ledger.write("a", [NULL_BLOCK, 3], 1)
    ledger.read("b", [NULL_BLOCK], 2)
    assert ledger.num_held(1) == 1 and ledger.num_held(2) == 0


def test_releasing_a_request_twice_changes_nothing(ledger: BlockLedger) -> None:
    ledger.write("a", [1], 0)
    ledger.release("a")
    ledger.release("a")
    assert ledger.num_held(0) == 0


def test_a_request_that_is_told_its_exchanged_table_anew_holds_nothing_twice(ledger: BlockLedger) -> None:
    ledger.write("a", [1, 2], 0)
    ledger.read("b", [1], 0)
    ledger.write("b", [3], 0)
    ledger.move("b", [1, 3], [4, 3], 1)
    ledger.read("b", [4, 3], 1)
    ledger.check("b", 1)
    assert (ledger.num_held(0), ledger.num_held(1)) == (2, 2)
    ledger.release("b")
    assert (ledger.num_held(0), ledger.num_held(1)) == (2, 0)


def test_a_block_that_was_read_and_is_turned_in_place_is_let_go_once(ledger: BlockLedger) -> None:
    ledger.write("a", [1], 0)
    ledger.read("b", [1], 0)
    ledger.release("a")
    ledger.move("b", [1], [1], 1)
    assert (ledger.num_held(0), ledger.num_held(1)) == (0, 1)
    ledger.release("b")
    assert ledger.num_held(1) == 0


def test_a_request_with_keys_of_two_scales_does_not_go_on(ledger: BlockLedger) -> None:
    ledger.write("a", [1, 2], 0)
    ledger.move("a", [1], [1], 1)
    with pytest.raises(MixedRotations, match="a goes on at scale number 1, but its block 2 has scale number 0"):
        ledger.check("a", 1)


class Sets:
    """The ledger as sets of names: what everybody holds, and nothing that makes it fast."""

    def __init__(self) -> None:
        self.scales: dict[int, int] = {}
        self.holders: dict[int, set[str]] = {}

    def write(self, request_id: str, block_ids: list[int], scale: int) -> None:
        for block_id in block_ids:
            self.scales[block_id], self.holders[block_id] = scale, {request_id}

    def read(self, request_id: str, block_ids: list[int]) -> None:
        for block_id in block_ids:
            self.holders.setdefault(block_id, set()).add(request_id)

    def release(self, request_id: str) -> None:
        for holders in self.holders.values():
            holders.discard(request_id)

    def held_by(self, request_id: str) -> list[int]:
        return sorted(block_id for block_id, holders in self.holders.items() if request_id in holders)

    @property
    def levels(self) -> Counter[int]:
        return Counter(self.scales[block_id] for block_id, holders in self.holders.items() if holders)


NAMES, NUM_BLOCKS = "abc", 40


@settings(max_examples=300, derandomize=True)
@given(data=st.data())
def test_whatever_requests_do_the_ledger_counts_what_they_hold(data: st.DataObject) -> None:
    ledger, sets = BlockLedger(NUM_BLOCKS), Sets()
    for _ in range(data.draw(st.integers(1, 15))):
        name, scale = data.draw(st.sampled_from(NAMES)), data.draw(st.integers(0, 2))
        blocks = data.draw(st.lists(st.integers(1, NUM_BLOCKS - 1), unique=True, max_size=20))
        match data.draw(st.sampled_from(["write", "read", "move", "release"])):
            case "write":  # as fresh, whoever had them: windows give blocks back unheard
                ledger.write(name, blocks, scale)
                sets.write(name, blocks, scale)
            case "read":
                cached = [block_id for block_id in blocks if sets.scales.get(block_id) == scale]
                ledger.read(name, cached, scale)
                sets.read(name, cached)
            case "move":
                free = iter([block_id for block_id in range(1, NUM_BLOCKS) if not sets.holders.get(block_id)])
                sources, targets = [], []
                for source in sets.held_by(name):
                    target = source if sets.holders[source] == {name} and source % 2 else next(free, None)
                    if target is not None:
                        sources.append(source)
                        targets.append(target)
                ledger.move(name, sources, targets, scale)
                for source in sources:
                    sets.holders[source].discard(name)
                sets.write(name, targets, scale)
            case "release":
                ledger.release(name)
                sets.release(name)
        assert Counter({scale: ledger.num_held(scale) for scale in range(3)}) == sets.levels
        for name in NAMES:
            if len({sets.scales[block_id] for block_id in sets.held_by(name)} | {scale}) == 1:
                ledger.check(name, scale)


def test_many_readers_of_one_prefix_cost_no_memory_for_each_of_its_blocks() -> None:
    num_blocks, prefix = 10_000, list(range(1, 8193))
    tracemalloc.start()
    ledger = BlockLedger(num_blocks)
    ledger.write("writer", prefix, 0)
    for number in range(256):
        ledger.read(f"reader {number}", prefix, 0)
        ledger.write(f"reader {number}", [8200 + 4 * number + place for place in range(4)], 0)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes < 32 * num_blocks + 256 * 512  # and so much for each request, whatever it reads


def test_blocks_that_have_left_a_window_are_let_go_when_their_request_crosses(ledger: BlockLedger) -> None:
    ledger.write("a", [1, 2, 3], 1)
    ledger.read("b", [1, 2], 1)
    ledger.write("b", [4], 1)
    ledger.hold_only("b", [2, 4], alone=[4])  # `b` has lost block 1, and reads block 2 beside `a`
    assert ledger.num_held(1) == 4
    ledger.release("a")
    assert ledger.num_held(1) == 2
    ledger.move("b", [2, 4], [5, 4], 2)
    ledger.check("b", 2)
    assert (ledger.num_held(1), ledger.num_held(2)) == (0, 2)


def test_a_request_that_crosses_takes_blocks_that_only_the_ledger_gives_to_others(ledger: BlockLedger) -> None:
    ledger.write("writer", [1, 2, 3], 1)
    ledger.read("reader", [1, 2], 1)
    ledger.read("crossing", [1], 1)
    with pytest.raises(
        MixedRotations, match="re-rotates keys into block 1, but another request holds the block: reader, writer"
    ):
        ledger.move("crossing", [1], [1], 2)
    # Block 1 has left the windows of both, and so has block 2, which is free by now.
    ledger.hold_only("crossing", [1], alone=[1, 2])
    ledger.move("crossing", [1], [1], 2)
    for name in ("writer", "reader"):
        ledger.check(name, 1)
        ledger.release(name)
    assert (ledger.num_held(1), ledger.num_held(2)) == (0, 1)


def test_what_is_shared_when_a_request_crosses_is_still_not_turned_in_place(ledger: BlockLedger) -> None:
    ledger.write("writer", [1], 1)
    ledger.read("crossing", [1], 1)
    ledger.hold_only("crossing", [1], alone=[])
    with pytest.raises(
        MixedRotations, match="re-rotates keys into block 1, but another request holds the block: writer"
    ):
        ledger.move("crossing", [1], [1], 2)

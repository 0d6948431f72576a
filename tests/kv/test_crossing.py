"""Which blocks are copied, and in which step each is re-rotated."""

from __future__ import annotations

from collections import deque

import pytest

from posenc_runtime.kv.crossing import BlockMove, Crossing, CrossingQueue, HeldBlock, blocks_to_copy


def held(block_id: int, *, shared: bool = False, cached: bool = False) -> HeldBlock:
    return HeldBlock(group=0, block_id=block_id, first_position=0, num_tokens=16, shared=shared, cached=cached)


OWN, SHARED, CACHED = held(1), held(2, shared=True, cached=True), held(3, cached=True)


@pytest.mark.parametrize(
    ("num_free", "num_needed", "num_reserved", "copied"),
    [
        (0, 0, 0, None),
        (1, 0, 0, [SHARED]),
        (1, 1, 0, None),
        (2, 0, 1, [SHARED]),
        (2, 1, 0, [SHARED]),
        (2, 0, 0, [SHARED, CACHED]),
        (9, 0, 9, [SHARED]),  # the reserve is not for sharing, which leaves no choice
    ],
    ids=[
        "no-room",
        "room-for-the-shared",
        "needed-to-go-on",
        "rest-reserved",
        "rest-needed",
        "room-for-all",
        "all-reserved",
    ],
)
def test_shared_blocks_are_always_copied_and_cached_ones_where_there_is_room(
    num_free: int, num_needed: int, num_reserved: int, copied: list[HeldBlock] | None
) -> None:
    chosen = blocks_to_copy([OWN, SHARED, CACHED], num_free=num_free, num_needed=num_needed, num_reserved=num_reserved)
    assert chosen == copied


def move(block_id: int, target: int | None = None) -> BlockMove:
    return BlockMove(group=0, source=block_id, target=target or block_id, first_position=0, num_tokens=10)


def crossing(request_id: str, *moves: BlockMove) -> Crossing:
    return Crossing(request_id=request_id, from_index=0, to_index=1, num_tokens=10 * len(moves), waiting=deque(moves))


def steps(queue: CrossingQueue, budget_tokens: int) -> list[tuple[list[tuple[str, list[int]]], list[str]]]:
    """What every step does until there is nothing left: sources by request, and who is done."""
    done = []
    while True:
        rotations, completed = queue.advance(budget_tokens)
        if not rotations:
            return done
        moved = [(each.request_id, [move.source for move in rotation.moves]) for each, rotation in rotations]
        done.append((moved, [each.request_id for each in completed]))


@pytest.mark.parametrize(
    ("budget_tokens", "expected"),
    [
        (100, [([("a", [1, 2, 3]), ("b", [4])], ["a", "b"])]),
        (30, [([("a", [1, 2, 3])], ["a"]), ([("b", [4])], ["b"])]),
        (20, [([("a", [1, 2])], []), ([("a", [3]), ("b", [4])], ["a", "b"])]),
        (1, [([("a", [1])], []), ([("a", [2])], []), ([("a", [3])], ["a"]), ([("b", [4])], ["b"])]),
    ],
    ids=["all-at-once", "one-each", "overlapping", "less-than-a-block"],
)
def test_crossings_are_served_in_their_order_within_the_budget(
    budget_tokens: int, expected: list[tuple[list[tuple[str, list[int]]], list[str]]]
) -> None:
    queue = CrossingQueue()
    queue.begin(crossing("a", move(1), move(2), move(3)))
    queue.begin(crossing("b", move(4)))
    assert "a" in queue and "b" in queue
    assert steps(queue, budget_tokens) == expected
    assert "a" not in queue and "b" not in queue


def test_a_dropped_crossing_names_the_sources_that_were_never_read() -> None:
    queue = CrossingQueue()
    queue.begin(crossing("a", move(1, target=11), move(2), move(3, target=13)))
    queue.advance(10)
    assert queue.drop("a") == [3]
    assert queue.drop("a") == []
    assert queue.advance(10) == ([], [])

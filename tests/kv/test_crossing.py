"""Which blocks are copied, and in which step each is re-rotated."""

from __future__ import annotations

import numpy as np
import pytest

from posenc_runtime.kv.crossing import Crossing, CrossingQueue, blocks_to_copy
from posenc_runtime.kv.moves import BlockMove, HeldBlocks, Moves

OWN, SHARED, CACHED = 1, 2, 3
HELD = HeldBlocks(
    group=np.zeros(3, dtype=np.int64),
    block_id=np.array([OWN, SHARED, CACHED]),
    first_position=np.array([0, 16, 32]),
    num_tokens=np.array([16, 16, 16]),
    shared=np.array([False, True, False]),
    cached=np.array([False, True, True]),
)


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
    num_free: int, num_needed: int, num_reserved: int, copied: list[int] | None
) -> None:
    chosen = blocks_to_copy(HELD, num_free=num_free, num_needed=num_needed, num_reserved=num_reserved)
    assert (None if chosen is None else HELD.block_id[chosen].tolist()) == copied


def move(block_id: int, target: int | None = None) -> BlockMove:
    return BlockMove(group=0, source=block_id, target=target or block_id, first_position=0, num_tokens=10)


def crossing(request_id: str, *moves: BlockMove) -> Crossing:
    return Crossing(request_id=request_id, from_index=0, to_index=1, num_tokens=10 * len(moves), moves=Moves.of(moves))


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

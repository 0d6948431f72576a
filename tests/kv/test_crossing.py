"""Which blocks are copied, and in which step each is re-rotated."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posenc_runtime.kv.crossing import Crossing, CrossingQueue, Rotation, blocks_to_copy
from posenc_runtime.kv.moves import BlockMove, HeldBlocks, Moves

LARGEST = 10  # tokens of a whole block
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


def move(block_id: int, target: int | None = None, num_tokens: int = LARGEST) -> BlockMove:
    return BlockMove(group=0, source=block_id, target=target or block_id, first_position=0, num_tokens=num_tokens)


def crossing(request_id: str, *moves: BlockMove) -> Crossing:
    num_tokens = sum(move.num_tokens for move in moves)
    return Crossing(request_id=request_id, from_index=0, to_index=1, num_tokens=num_tokens, moves=Moves.of(moves))


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
        (40, [([("a", [1, 2, 3]), ("b", [4])], ["a", "b"])]),
        (30, [([("a", [1, 2]), ("b", [4])], ["b"]), ([("a", [3])], ["a"])]),
        (20, [([("a", [1]), ("b", [4])], ["b"]), ([("a", [2, 3])], ["a"])]),
        (10, [([("a", [1])], []), ([("a", [2])], []), ([("a", [3])], ["a"]), ([("b", [4])], ["b"])]),
        (1, [([("a", [1])], []), ([("a", [2])], []), ([("a", [3])], ["a"]), ([("b", [4])], ["b"])]),
    ],
    ids=["all-at-once", "just-all", "three-blocks", "two-blocks", "one-block", "less-than-a-block"],
)
def test_half_of_the_budget_goes_to_the_shortest_and_the_rest_to_the_first(
    budget_tokens: int, expected: list[tuple[list[tuple[str, list[int]]], list[str]]]
) -> None:
    queue = CrossingQueue()
    queue.begin(crossing("a", move(1), move(2), move(3)))
    queue.begin(crossing("b", move(4)))
    assert "a" in queue and "b" in queue
    assert steps(queue, budget_tokens) == expected
    assert "a" not in queue and "b" not in queue


def test_the_first_goes_on_though_shorter_ones_leave_no_room_for_a_block_of_it() -> None:
    queue = CrossingQueue()
    queue.begin(crossing("first", move(1), move(2)))
    for number in range(2):
        queue.begin(crossing(f"short-{number}", move(10 + number, num_tokens=4)))
        rotations, _ = queue.advance(8)
        moved = {each.request_id: [move.source for move in rotation.moves] for each, rotation in rotations}
        assert moved == {"first": [1 + number], f"short-{number}": [10 + number]}
    assert "first" not in queue


@given(
    budget_tokens=st.integers(1, 80),
    arrivals=st.lists(
        st.tuples(st.integers(0, 12), st.lists(st.integers(1, LARGEST), min_size=1, max_size=9)), max_size=12
    ),
)
def test_every_crossing_ends_whatever_comes_after_it(budget_tokens: int, arrivals: list[tuple[int, list[int]]]) -> None:
    queue = CrossingQueue()
    arrivals = sorted(arrivals, key=lambda arrival: arrival[0])
    left: dict[str, list[BlockMove]] = {}
    ends_by: dict[str, int] = {}
    for step in range(13 + sum(len(sizes) for _, sizes in arrivals)):
        while len(ends_by) < len(arrivals) and arrivals[len(ends_by)][0] <= step:
            name, sizes = f"r{len(ends_by)}", arrivals[len(ends_by)][1]
            moves = [move(100 * len(ends_by) + index + 1, num_tokens=size) for index, size in enumerate(sizes)]
            left[name] = list(moves)
            # A block a step of those that came before it, and of its own.
            ends_by[name] = step + sum(map(len, left.values()))
            queue.begin(crossing(name, *moves))
        rotations, completed = queue.advance(budget_tokens)
        for each, rotation in rotations:
            assert list(rotation.moves) == left[each.request_id][: len(rotation.moves)]  # in their order
            del left[each.request_id][: len(rotation.moves)]
        ended = [name for name, moves in left.items() if not moves]
        assert [each.request_id for each in completed] == ended
        for name in ended:
            del left[name]
        moved = sum(move.num_tokens for _, rotation in rotations for move in rotation.moves)
        assert moved < budget_tokens + LARGEST
        assert moved or not left
        if left:  # nothing is left over that a block would have fitted into
            assert moved + LARGEST > budget_tokens
        assert all(step + 1 < ends_by[name] for name in left), "a crossing waits for those that came after it"
    assert not left


def test_moves_arrive_in_another_process_as_they_were_and_take_forty_bytes_each() -> None:
    moves = [move(index + 1, target=2**40 + index, num_tokens=3) for index in range(8192)]
    sent = pickle.dumps(Rotation(from_index=1, to_index=2, moves=Moves.of(moves)), protocol=5)
    assert len(sent) < 40 * len(moves) + 2000
    arrived = pickle.loads(sent)
    assert (arrived.from_index, arrived.to_index, list(arrived.moves)) == (1, 2, moves)


def test_nothing_is_turned_by_a_budget_that_nobody_has_said() -> None:
    queue = CrossingQueue()
    assert queue.advance(None) == ([], [])
    queue.begin(crossing("a", move(1)))
    with pytest.raises(RuntimeError, match="no worker has reported how long turning takes"):
        queue.advance(None)


def test_a_dropped_crossing_names_the_sources_that_were_never_read() -> None:
    queue = CrossingQueue()
    queue.begin(crossing("a", move(1, target=11), move(2), move(3, target=13)))
    queue.advance(10)
    assert queue.drop("a") == [3]
    assert queue.drop("a") == []
    assert queue.advance(10) == ([], [])

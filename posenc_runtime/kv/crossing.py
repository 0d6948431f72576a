"""Cached keys change their scale: which blocks are copied, and in which step each is re-rotated."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldBlock:
    """A block with cached keys of a request that crosses.

    Attributes:
        group: number of the KV cache group whose layers the block belongs to.
        first_position: position of the block's first token.
        num_tokens: tokens of the request in the block, at least 1.
        shared: another request reads the block, too, so it must not be written.
        cached: the prefix cache could hand the block out again, at the scale that it carries now.
    """

    group: int
    block_id: int
    first_position: int
    num_tokens: int
    shared: bool
    cached: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockMove:
    """The keys of ``source``, re-rotated, are to be in ``target``. Equal: in place. Otherwise values are copied."""

    group: int
    source: int
    target: int
    first_position: int
    num_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotation:
    """Moves of one request from one scale to another, by index."""

    from_index: int
    to_index: int
    moves: tuple[BlockMove, ...]


def blocks_to_copy(
    held: Sequence[HeldBlock], *, num_free: int, num_needed: int, num_reserved: int
) -> list[HeldBlock] | None:
    """Which blocks are copied before they are re-rotated; the others are re-rotated in place.

    Shared blocks must be copied, because their other reader goes on at the old scale. Blocks that the prefix cache
    may hand out again are copied where there is room: the next request with this prompt then finds them, and the
    originals are free for whoever needs them as soon as they have been read.

    Args:
        num_free: blocks that may be taken.
        num_needed: of these, blocks that the request needs for its next tokens. Spent on copies they would be missing
            at once: the request would be preempted, and replay into the same.
        num_reserved: of these, blocks that are left to other requests unless sharing leaves no choice.

    Returns:
        None when there are fewer free blocks than must be taken: somebody has to be preempted first.
    """
    shared = [block for block in held if block.shared]
    if len(shared) + num_needed > num_free:
        return None
    room = num_free - num_needed - num_reserved - len(shared)
    cached = [block for block in held if block.cached and not block.shared]
    # All or nothing: a prefix is only worth what is contiguous from its start, and half of it frees no time.
    return shared + (cached if len(cached) <= room else [])


@dataclasses.dataclass(kw_only=True)
class Crossing:
    """A request on its way from one scale to another, or a prefix on its way to a request of another scale.

    Attributes:
        num_tokens: tokens whose keys change their scale: all that a request has cached, or those of the prefix.
        reuses_prefix: the keys are those of a prefix that others have left.
        waiting: moves that have not been handed to the workers yet.
    """

    request_id: str
    from_index: int
    to_index: int
    num_tokens: int
    waiting: deque[BlockMove]
    reuses_prefix: bool = False


class CrossingQueue:
    """Crossings in progress, first come, first served, so many tokens before each step."""

    def __init__(self) -> None:
        self._crossings: dict[str, Crossing] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._crossings

    def begin(self, crossing: Crossing) -> None:
        """Queue a request's moves. Until they are all done it must not run: its keys carry two scales."""
        self._crossings[crossing.request_id] = crossing

    def advance(self, budget_tokens: int) -> tuple[list[tuple[Crossing, Rotation]], list[Crossing]]:
        """Take the moves of one step from the queue.

        At least one block is moved whatever the budget, so that every crossing ends.

        Returns:
            The rotations with their crossings, in the order in which they are to be carried out, and the crossings
            that they complete.
        """
        rotations: list[tuple[Crossing, Rotation]] = []
        completed: list[Crossing] = []
        spent = 0
        for crossing in list(self._crossings.values()):
            moves = []
            while crossing.waiting and (not spent or spent + crossing.waiting[0].num_tokens <= budget_tokens):
                move = crossing.waiting.popleft()
                spent += move.num_tokens
                moves.append(move)
            if moves:
                rotation = Rotation(from_index=crossing.from_index, to_index=crossing.to_index, moves=tuple(moves))
                rotations.append((crossing, rotation))
            if crossing.waiting:
                break
            completed.append(self._crossings.pop(crossing.request_id))
        return rotations, completed

    def drop(self, request_id: str) -> list[int]:
        """Forget a request's crossing. Returns the sources of copies that were never made."""
        crossing = self._crossings.pop(request_id, None)
        return [] if crossing is None else [move.source for move in crossing.waiting if move.source != move.target]

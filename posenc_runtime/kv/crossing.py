"""Cached keys change their scale: which blocks are copied, and in which step each is re-rotated."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np

from posenc_runtime.kv.moves import HeldBlocks, Mask, Moves


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotation:
    """Moves of one request from one scale to another, by index."""

    from_index: int
    to_index: int
    moves: Moves


def blocks_to_copy(held: HeldBlocks, *, num_free: int, num_needed: int, num_reserved: int) -> Mask | None:
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
        ``[num_blocks]``, or None when there are fewer free blocks than must be taken: somebody has to be preempted
        first.
    """
    num_shared = int(held.shared.sum())
    if num_shared + num_needed > num_free:
        return None
    room = num_free - num_needed - num_reserved - num_shared
    # All or nothing: a prefix is only worth what is contiguous from its start, and half of it frees no time.
    takes_cached = int((held.cached & ~held.shared).sum()) <= room
    return held.shared | held.cached if takes_cached else held.shared


@dataclasses.dataclass(kw_only=True)
class Crossing:
    """A request on its way from one scale to another, or a prefix on its way to a request of another scale.

    Attributes:
        num_tokens: tokens whose keys change their scale: all that a request has cached, or those of the prefix.
        moves: all of them, in their order.
        num_begun: of these, how many have been handed to the workers.
        reuses_prefix: the keys are those of a prefix that others have left.
    """

    request_id: str
    from_index: int
    to_index: int
    num_tokens: int
    moves: Moves
    num_begun: int = 0
    reuses_prefix: bool = False

    def __post_init__(self) -> None:
        self._tokens_up_to = np.cumsum(self.moves.num_tokens)

    @property
    def is_whole(self) -> bool:
        return self.num_begun == len(self.moves)

    def begin(self, budget_tokens: int, *, at_least: int) -> tuple[Rotation | None, int]:
        """Take the next moves, of so many tokens at most, but so many moves at least. Returns their tokens, too."""
        before = self._tokens_up_to[self.num_begun - 1] if self.num_begun else 0
        end = int(np.searchsorted(self._tokens_up_to, before + budget_tokens, side="right"))
        begin, end = self.num_begun, min(max(end, self.num_begun + at_least), len(self.moves))
        if begin == end:
            return None, 0
        self.num_begun = end
        rotation = Rotation(from_index=self.from_index, to_index=self.to_index, moves=self.moves.part(begin, end))
        return rotation, int(self._tokens_up_to[end - 1] - before)

    def unread(self) -> list[int]:
        """The sources of copies that have not begun."""
        rest = self.moves.part(self.num_begun, len(self.moves))
        sources: list[int] = rest.source[rest.copies].tolist()
        return sources


class CrossingQueue:
    """Crossings in progress, first come, first served, so many tokens before each step."""

    def __init__(self) -> None:
        self._crossings: dict[str, Crossing] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._crossings

    def __bool__(self) -> bool:
        return bool(self._crossings)

    @property
    def names(self) -> Collection[str]:
        """The requests that are crossing."""
        return self._crossings.keys()

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
        left = budget_tokens
        for crossing in list(self._crossings.values()):
            rotation, num_tokens = crossing.begin(left, at_least=not rotations)
            left = max(left - num_tokens, 0)
            if rotation:
                rotations.append((crossing, rotation))
            if not crossing.is_whole:
                break
            completed.append(self._crossings.pop(crossing.request_id))
        return rotations, completed

    def drop(self, request_id: str) -> list[int]:
        """Forget a request's crossing. Returns the sources of copies that were never made."""
        crossing = self._crossings.pop(request_id, None)
        return [] if crossing is None else crossing.unread()

"""Cached keys change their scale: which blocks are copied, and in which step each is re-rotated."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

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
    may hand out again are copied if enough blocks are free: the next request with this prompt then finds the
    originals. The originals become free blocks as soon as the copies are made. Decision 16.

    Args:
        num_free: blocks that may be taken.
        num_needed: of the free blocks, those that the request needs for its next tokens. If copies took them, the
            request would be preempted at once, replay its tokens, and meet the same shortage. Decision 17.
        num_reserved: of the free blocks, those that are left to other requests, unless shared blocks need them.

    Returns:
        ``[num_blocks]``, or None when too few blocks are free for the shared blocks: the scheduler must preempt a
        request first.
    """
    num_shared = int(held.shared.sum())
    if num_shared + num_needed > num_free:
        return None
    room = num_free - num_needed - num_reserved - num_shared
    # All or nothing: the prefix cache only finds blocks that are contiguous from the start of a prompt.
    takes_cached = int((held.cached & ~held.shared).sum()) <= room
    return held.shared | held.cached if takes_cached else held.shared


@dataclasses.dataclass(kw_only=True)
class Crossing:
    """A request on its way from one scale to another, or a prefix on its way to a request of another scale.

    Attributes:
        num_tokens: tokens whose keys change their scale: all that a request has cached, or those of the prefix.
        moves: all moves of the crossing, in their order.
        num_begun: how many of the moves the workers have got.
        reuses_prefix: whether the keys are a cached prefix of other requests, which is copied.
        ahead: ids of blocks behind these tokens, which the request holds for drafted tokens. Nothing in them is turned.
    """

    request_id: str
    from_index: int
    to_index: int
    num_tokens: int
    moves: Moves
    num_begun: int = 0
    reuses_prefix: bool = False
    ahead: Sequence[int] = ()

    def __post_init__(self) -> None:
        self._tokens_up_to = np.cumsum(self.moves.num_tokens)

    @property
    def is_whole(self) -> bool:
        return self.num_begun == len(self.moves)

    @property
    def num_left(self) -> int:
        """Tokens of the moves that have not begun, of all KV cache groups."""
        return int(self._tokens_up_to[-1]) - self._tokens_begun if len(self.moves) else 0

    def begin(self, budget_tokens: int, *, at_least: int = 0) -> int:
        """Hand the next moves to the workers.

        Args:
            budget_tokens: the most tokens that these moves may have.
            at_least: moves that begin even if their tokens exceed the budget.

        Returns:
            Tokens of the moves that begin.
        """
        before = self._tokens_begun
        end = int(np.searchsorted(self._tokens_up_to, before + budget_tokens, side="right"))
        self.num_begun = min(max(end, self.num_begun + at_least), len(self.moves))
        return self._tokens_begun - before

    def rotation(self, since: int) -> Rotation:
        """The moves that have begun after the first ``since`` moves."""
        moves = self.moves.part(since, self.num_begun)
        return Rotation(from_index=self.from_index, to_index=self.to_index, moves=moves)

    def unread(self) -> list[int]:
        """The sources of copies that have not begun."""
        rest = self.moves.part(self.num_begun, len(self.moves))
        sources: list[int] = rest.source[rest.copies].tolist()
        return sources

    @property
    def _tokens_begun(self) -> int:
        return int(self._tokens_up_to[self.num_begun - 1]) if self.num_begun else 0


class CrossingQueue:
    """Crossings in progress, which share one budget of tokens before each step. Decision 19.

    Half of the budget goes to the crossings with the fewest tokens left, so that short ones do not wait behind long
    ones. The rest goes to the oldest crossings. The oldest one of all gets at least one move in every step, so that
    every crossing ends.
    """

    def __init__(self) -> None:
        self._crossings: dict[str, Crossing] = {}  # in the order in which they came

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._crossings

    def __bool__(self) -> bool:
        return bool(self._crossings)

    @property
    def names(self) -> Collection[str]:
        """The requests that are crossing."""
        return self._crossings.keys()

    def begin(self, crossing: Crossing) -> None:
        """Queue a crossing. Its request must not run until all moves are done: until then its keys carry two scales."""
        self._crossings[crossing.request_id] = crossing

    def advance(self, budget_tokens: int | None) -> tuple[list[tuple[Crossing, Rotation]], list[Crossing]]:
        """Take the moves of one step from the queue.

        Args:
            budget_tokens: the most tokens to turn before this step. At least one block is moved, however small the
                budget is, so that a step may exceed it by less than a block. None if no budget is known; then no
                crossing may be queued.

        Returns:
            The rotations with their crossings, and the crossings that these rotations complete. Both are in the order
            in which the crossings were queued. A crossing has one rotation, whose moves are in order.

        Raises:
            RuntimeError: when a crossing is queued and no budget is known.
        """
        if not self._crossings:
            return [], []
        if budget_tokens is None:
            raise RuntimeError(
                "the budget of a step must be known before keys are turned, but no worker has reported how long "
                f"turning takes, and {len(self._crossings)} requests wait: set scaling.rerotate_budget_tokens"
            )
        crossings = list(self._crossings.values())
        begun = [crossing.num_begun for crossing in crossings]
        spent = 0
        for crossing in sorted(crossings, key=lambda crossing: crossing.num_left):
            spent += crossing.begin(budget_tokens // 2 - spent)
            if not crossing.is_whole:
                break
        for crossing, num_begun in zip(crossings, begun, strict=True):
            is_owed = crossing is crossings[0] and crossing.num_begun == num_begun
            spent += crossing.begin(max(budget_tokens - spent, 0), at_least=is_owed)
            if not crossing.is_whole:
                break
        rotations = [
            (crossing, crossing.rotation(num_begun))
            for crossing, num_begun in zip(crossings, begun, strict=True)
            if crossing.num_begun > num_begun
        ]
        completed = [crossing for crossing in crossings if crossing.is_whole]
        for crossing in completed:
            del self._crossings[crossing.request_id]
        return rotations, completed

    def drop(self, request_id: str) -> list[int]:
        """Forget a request's crossing. Returns the sources of copies that were never made."""
        crossing = self._crossings.pop(request_id, None)
        return [] if crossing is None else crossing.unread()

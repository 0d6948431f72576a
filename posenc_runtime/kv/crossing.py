"""Cached keys change their scale: which blocks are copied, and in which step each is re-rotated."""

from __future__ import annotations

import array
import dataclasses
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, overload


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


class BlockMove(NamedTuple):
    """The keys of ``source``, re-rotated, are to be in ``target``. Equal: in place. Otherwise values are copied."""

    group: int
    source: int
    target: int
    first_position: int
    num_tokens: int


class PackedMoves(Sequence[BlockMove]):
    """Moves as one array of numbers: a crossing has thousands, and an object each costs more than to turn its keys.

    Attributes:
        numbers: those of one move behind those of another, in the order of ``BlockMove``.
    """

    def __init__(self, moves: Iterable[BlockMove]) -> None:
        self.numbers = array.array("q", itertools.chain.from_iterable(moves))

    @classmethod
    def of(cls, moves: Sequence[BlockMove]) -> PackedMoves:
        """The same, if they are packed already."""
        return moves if isinstance(moves, PackedMoves) else cls(moves)

    def extend(self, moves: Sequence[BlockMove]) -> None:
        self.numbers += PackedMoves.of(moves).numbers

    def __len__(self) -> int:
        return len(self.numbers) // len(BlockMove._fields)

    @overload
    def __getitem__(self, index: int) -> BlockMove: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[BlockMove]: ...

    def __getitem__(self, index: int | slice) -> BlockMove | Sequence[BlockMove]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} moves, got index {index}")
        first = index % len(self) * len(BlockMove._fields)
        return BlockMove(*self.numbers[first : first + len(BlockMove._fields)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotation:
    """Moves from one scale to another, by index. Whoever gets it from another process gets them packed."""

    from_index: int
    to_index: int
    moves: Sequence[BlockMove]

    def __reduce__(self) -> tuple[Callable[[], Rotation], tuple[()]]:
        moves = PackedMoves.of(self.moves)
        return functools.partial(Rotation, from_index=self.from_index, to_index=self.to_index, moves=moves), ()


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
        num_left: tokens of these, of all KV cache groups.
    """

    request_id: str
    from_index: int
    to_index: int
    num_tokens: int
    waiting: deque[BlockMove]
    reuses_prefix: bool = False
    num_left: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.num_left = sum(move.num_tokens for move in self.waiting)

    def take(self) -> BlockMove:
        """The next move, which is not waiting any more."""
        move = self.waiting.popleft()
        self.num_left -= move.num_tokens
        return move


class CrossingQueue:
    """Crossings in progress, so many tokens before each step.

    Half of them are spent on those that have the least left, so that short ones do not wait behind long ones; the rest
    on those that came first, of which the first is never without a move: so each ends, whoever comes after it.
    """

    def __init__(self) -> None:
        self._crossings: dict[str, Crossing] = {}  # in the order in which they came

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._crossings

    def begin(self, crossing: Crossing) -> None:
        """Queue a request's moves. Until they are all done it must not run: its keys carry two scales."""
        self._crossings[crossing.request_id] = crossing

    def advance(self, budget_tokens: int | None) -> tuple[list[tuple[Crossing, Rotation]], list[Crossing]]:
        """Take the moves of one step from the queue.

        Args:
            budget_tokens: None where nobody has said it, and then nothing may be waiting. At least one block is moved
                whatever the budget, which may be exceeded by less than a block.

        Returns:
            The rotations with their crossings, and the crossings that they complete, both in the order in which they
            came. A crossing has one rotation, and its moves are in their order.

        Raises:
            RuntimeError: when something is waiting for a budget that nobody has said.
        """
        if not self._crossings:
            return [], []
        if budget_tokens is None:
            raise RuntimeError(
                f"the budget of a step must be known before keys are turned, and {len(self._crossings)} requests wait: "
                "no worker has said how long it takes to turn them; set scaling.rerotate_budget_tokens"
            )
        moves: dict[str, list[BlockMove]] = {request_id: [] for request_id in self._crossings}
        first = next(iter(self._crossings.values()))
        spent = 0
        for crossing in sorted(self._crossings.values(), key=lambda crossing: crossing.num_left):
            while crossing.waiting and spent + crossing.waiting[0].num_tokens <= budget_tokens // 2:
                spent += crossing.waiting[0].num_tokens
                moves[crossing.request_id].append(crossing.take())
            if crossing.waiting:
                break
        for crossing in self._crossings.values():
            owed = crossing is first and not moves[crossing.request_id]
            while crossing.waiting and (owed or spent + crossing.waiting[0].num_tokens <= budget_tokens):
                spent += crossing.waiting[0].num_tokens
                moves[crossing.request_id].append(crossing.take())
                owed = False
            if crossing.waiting:
                break
        rotations = [
            (crossing, Rotation(from_index=crossing.from_index, to_index=crossing.to_index, moves=tuple(made)))
            for crossing, made in zip(self._crossings.values(), moves.values(), strict=True)
            if made
        ]
        completed = [crossing for crossing in self._crossings.values() if not crossing.waiting]
        for crossing in completed:
            del self._crossings[crossing.request_id]
        return rotations, completed

    def drop(self, request_id: str) -> list[int]:
        """Forget a request's crossing. Returns the sources of copies that were never made."""
        crossing = self._crossings.pop(request_id, None)
        return [] if crossing is None else [move.source for move in crossing.waiting if move.source != move.target]

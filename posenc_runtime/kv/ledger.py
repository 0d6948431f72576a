"""The scale that every physical KV block carries, and how many blocks running requests hold at each.

The ledger is a table by block number, 18 bytes a block, and a list of block numbers for each request. Requests that
read the same cached prefix share the list of the prefix's blocks. Decision 7.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.ma  # numpy itself imports it when it is first asked for unique values, in the middle of a step
from numpy.typing import NDArray

NULL_BLOCK = 0  # vLLM's placeholder block: never written, never read

BlockIds = NDArray[np.int32]
Numbers = Sequence[int] | NDArray[np.int64]

_FEW = 16  # blocks: up to here a loop is faster than numpy; a request that decodes gets one block now and then
_NEVER_WRITTEN = -1
_NOBODY = 0


class MixedRotations(RuntimeError):
    """A request was about to read keys of a scale that is not its own. The answer would be garbage."""

    def __str__(self) -> str:
        return f"{super().__str__()}. This is a bug in Posenc: report it with this message"


@dataclasses.dataclass(slots=True)
class _Holdings:
    """The blocks of one request.

    Attributes:
        number: stands for the request in the table.
        written: blocks that the request was given to write. Other requests may have got some of them since.
        read: lists of blocks that the request found in the prefix cache, each with the time when it found them.
    """

    number: int
    written: array[int] = dataclasses.field(default_factory=lambda: array("i"))
    read: list[tuple[BlockIds, int]] = dataclasses.field(default_factory=list)


class BlockLedger:
    """Mirrors, in the scheduler, what the workers' table of block scales says after the step being planned.

    A block keeps its scale after its request has gone, because the prefix cache may hand it out again.

    Args:
        num_blocks: blocks of the pool, vLLM's null block among them.
    """

    def __init__(self, num_blocks: int) -> None:
        # Of each block: its scale, how many requests hold it, which of them was the last to write it, and when.
        self._scale = np.full(num_blocks, _NEVER_WRITTEN, dtype=np.int16)
        self._num_holders = np.zeros(num_blocks, dtype=np.int32)
        self._writer = np.full(num_blocks, _NOBODY, dtype=np.int32)
        self._written_at = np.zeros(num_blocks, dtype=np.int64)
        self._holdings: dict[str, _Holdings] = {}
        self._prefixes: dict[bytes, tuple[BlockIds, int]] = {}  # what requests read, and how many of them do
        self._num_held: Counter[int] = Counter()
        self._num_requests = 0
        self._now = 0

    def write(self, request_id: str, block_ids: Numbers, scale_index: int) -> None:
        """A request got fresh blocks, which it will fill with keys of its scale.

        Any other holder of such a block loses it. With a sliding window, vLLM takes blocks from a request that still
        runs. The ledger learns of it from this call, or from ``hold_only``.
        """
        self._now += 1
        holdings = self._of(request_id)
        if len(block_ids) <= _FEW:
            for block_id in block_ids:
                if block_id != NULL_BLOCK:
                    self._write_one(holdings, block_id, scale_index)
            return
        blocks = _real(block_ids)
        self._count(blocks[self._num_holders[blocks] > 0], -1)
        self._scale[blocks] = scale_index
        self._num_holders[blocks] = 1
        self._written_at[blocks] = self._now
        holdings.written.frombytes(blocks[self._writer[blocks] != holdings.number].tobytes())
        self._writer[blocks] = holdings.number
        self._num_held[scale_index] += len(blocks)

    def read(self, request_id: str, block_ids: Sequence[int], scale_index: int) -> None:
        """A request got blocks whose keys were written earlier: a prefix-cache hit.

        Raises:
            MixedRotations: when one of them carries another scale.
        """
        blocks = _real(block_ids)
        if not len(blocks):
            return
        if len(wrong := blocks[self._scale[blocks] != scale_index]):
            raise MixedRotations(
                f"request {request_id} reads keys of scale number {scale_index}, "
                f"but block {wrong[0]} of the prefix cache has scale number {self._carried(wrong[0])}"
            )
        holdings = self._of(request_id)
        # When a request's block table is replaced, `read` names blocks that the request holds already.
        blocks = blocks[self._writer[blocks] != holdings.number]
        for known, since in holdings.read:
            blocks = blocks[~np.isin(blocks, self._still(known, since))]
        if len(blocks):
            self._num_held[scale_index] += int((self._num_holders[blocks] == 0).sum())
            self._num_holders[blocks] += 1
            holdings.read.append((self._share(blocks), self._now))

    def hold_only(self, request_id: str, block_ids: Numbers, alone: Numbers) -> None:
        """Before a request crosses: learn what vLLM has taken away from it and from other requests meanwhile.

        With a sliding window, blocks leave a request that still runs, and nobody tells the ledger. Decision 20.

        Args:
            block_ids: all blocks that the request holds.
            alone: blocks that no other request holds, whether this request does or not.
        """
        self.release(request_id)
        self._now += 1
        blocks, free = np.asarray(block_ids, dtype=np.int32), np.asarray(alone, dtype=np.int32)
        self._count(free[self._num_holders[free] > 0], -1)
        self._num_holders[free] = 0
        self._writer[free] = _NOBODY
        self._written_at[free] = self._now
        if len(blocks):
            self._count(blocks[self._num_holders[blocks] == 0], 1)
            self._num_holders[blocks] += 1
            self._of(request_id).read.append((self._share(blocks), self._now))

    def copy(self, request_id: str, sources: Numbers, targets: Numbers, from_index: int, to_index: int) -> None:
        """A request gets re-rotated copies of blocks that it does not hold.

        Raises:
            MixedRotations: when a source does not carry the scale ``from_index``.
        """
        blocks = np.asarray(sources, dtype=np.int32)
        if len(wrong := blocks[self._scale[blocks] != from_index]):
            raise MixedRotations(
                f"request {request_id} copies block {wrong[0]} as one of scale number {from_index}, "
                f"but the block has scale number {self._carried(wrong[0])}"
            )
        self.write(request_id, targets, to_index)

    def move(self, request_id: str, sources: Numbers, targets: Numbers, scale_index: int) -> None:
        """A request's keys are re-rotated, in place or into fresh blocks, which replace the old ones.

        Raises:
            MixedRotations: when another request reads a block that is re-rotated in place, or holds a fresh block.
        """
        old, new = np.asarray(sources, dtype=np.int32), np.asarray(targets, dtype=np.int32)
        is_in_place = old == new
        if len(wrong := new[self._num_holders[new] > is_in_place]):
            others = sorted(name for name in self._holders(wrong[0]) if name != request_id)
            raise MixedRotations(
                f"request {request_id} re-rotates keys into block {wrong[0]}, but another request holds the block: "
                f"{', '.join(others)}"
            )
        holdings = self._of(request_id)
        self._forget_read(holdings, old)
        self._let_go(old)
        copied = old[~is_in_place]
        self._writer[copied[self._writer[copied] == holdings.number]] = _NOBODY
        self.write(request_id, targets, scale_index)

    def check(self, request_id: str, scale_index: int) -> None:
        """Check that all blocks of a request carry one scale.

        Raises:
            MixedRotations: when a block carries another; the message names the block.
        """
        if holdings := self._holdings.get(request_id):
            for blocks in self._held(holdings):
                if len(wrong := blocks[self._scale[blocks] != scale_index]):
                    raise MixedRotations(
                        f"request {request_id} goes on at scale number {scale_index}, but its block {wrong[0]} "
                        f"has scale number {self._carried(wrong[0])}"
                    )

    def release(self, request_id: str) -> None:
        """A request gave its blocks back: it finished, was cancelled, or was preempted."""
        holdings = self._holdings.pop(request_id, None)
        if holdings is None:
            return
        if not holdings.read and len(holdings.written) <= _FEW:
            for block_id in holdings.written:
                if self._writer[block_id] == holdings.number:
                    self._let_go_one(block_id)
            return
        for blocks in map(np.unique, self._held(holdings)):
            self._let_go(blocks)
            self._writer[blocks[self._writer[blocks] == holdings.number]] = _NOBODY
        for blocks, _ in holdings.read:
            self._unshare(blocks)

    def num_held(self, scale_index: int) -> int:
        """Blocks that running requests hold at a scale; a shared block counts once."""
        return self._num_held[scale_index]

    def _of(self, request_id: str) -> _Holdings:
        holdings = self._holdings.get(request_id)
        if holdings is None:
            self._num_requests += 1
            holdings = self._holdings[request_id] = _Holdings(self._num_requests)
        return holdings

    def _write_one(self, holdings: _Holdings, block_id: int, scale_index: int) -> None:
        if self._num_holders[block_id]:
            self._num_held[int(self._scale[block_id])] -= 1
        self._scale[block_id] = scale_index
        self._num_holders[block_id] = 1
        self._written_at[block_id] = self._now
        if self._writer[block_id] != holdings.number:
            self._writer[block_id] = holdings.number
            holdings.written.append(block_id)
        self._num_held[scale_index] += 1

    def _let_go_one(self, block_id: int) -> None:
        """Let go of a block that the request was given to write and still holds."""
        self._writer[block_id] = _NOBODY
        self._num_holders[block_id] -= 1
        if not self._num_holders[block_id]:
            self._num_held[int(self._scale[block_id])] -= 1

    def _held(self, holdings: _Holdings) -> Iterator[BlockIds]:
        """The blocks that a request still holds. A block that the request was given to write may be in there twice."""
        written = np.frombuffer(holdings.written, dtype=np.int32)
        yield written[self._writer[written] == holdings.number]
        for blocks, since in holdings.read:
            yield self._still(blocks, since)

    def _still(self, blocks: BlockIds, since: int) -> BlockIds:
        """The blocks that no request was given to write after time ``since``."""
        return blocks[self._written_at[blocks] <= since]

    def _let_go(self, blocks: BlockIds) -> None:
        self._num_holders[blocks] -= 1
        self._count(blocks[self._num_holders[blocks] == 0], -1)

    def _count(self, blocks: BlockIds, change: int) -> None:
        for scale_index, number in enumerate(np.bincount(self._scale[blocks]).tolist()):
            if number:
                self._num_held[scale_index] += change * number

    def _forget_read(self, holdings: _Holdings, gone: BlockIds) -> None:
        kept = []
        for blocks, since in holdings.read:
            self._unshare(blocks)
            if len(rest := blocks[~np.isin(blocks, gone)]):
                kept.append((self._share(rest), since))
        holdings.read = kept

    def _share(self, blocks: BlockIds) -> BlockIds:
        key = blocks.tobytes()
        shared, num_readers = self._prefixes.get(key, (np.frombuffer(key, dtype=np.int32), 0))
        self._prefixes[key] = shared, num_readers + 1
        return shared

    def _unshare(self, blocks: BlockIds) -> None:
        key = blocks.tobytes()
        shared, num_readers = self._prefixes.pop(key)
        if num_readers > 1:
            self._prefixes[key] = shared, num_readers - 1

    def _holders(self, block_id: int) -> Iterator[str]:
        for request_id, holdings in self._holdings.items():
            if any(block_id in blocks for blocks in self._held(holdings)):
                yield request_id

    def _carried(self, block_id: int) -> int | None:
        return None if self._scale[block_id] == _NEVER_WRITTEN else int(self._scale[block_id])


def _real(block_ids: Numbers) -> BlockIds:
    """Without the null block, which many requests have in many places."""
    blocks: BlockIds = np.asarray(block_ids, dtype=np.int32)
    real: BlockIds = blocks[blocks != NULL_BLOCK]
    return real

"""The scale that every physical KV block carries, and how many blocks running requests hold at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

NULL_BLOCK = 0  # vLLM's placeholder block: never written, never read


class MixedRotations(RuntimeError):
    """A request was about to read keys of a scale that is not its own. The answer would be garbage."""


class BlockLedger:
    """Mirrors, in the scheduler, what the workers' table of block scales says after the step being planned.

    A block keeps its scale after its request has gone, because the prefix cache may hand it out again.
    """

    def __init__(self) -> None:
        self._scale_of: dict[int, int] = {}
        self._holders: dict[int, set[str]] = {}
        self._held_by: dict[str, set[int]] = {}
        self._num_held: Counter[int] = Counter()

    def write(self, request_id: str, block_ids: Iterable[int], scale_index: int) -> None:
        """A request got fresh blocks, which it will fill with keys of its scale.

        Who held such a block has lost it: a sliding window gives blocks back while its request runs on.
        """
        for block_id in block_ids:
            if block_id == NULL_BLOCK:
                continue
            for holder in list(self._holders.get(block_id, ())):
                self._let_go(holder, block_id)
            self._scale_of[block_id] = scale_index
            self._hold(request_id, block_id)

    def read(self, request_id: str, block_ids: Iterable[int], scale_index: int) -> None:
        """A request got blocks whose keys were written earlier: a prefix-cache hit.

        Raises:
            MixedRotations: when one of them carries another scale.
        """
        for block_id in block_ids:
            if block_id == NULL_BLOCK:
                continue
            carried = self._scale_of.get(block_id)
            if carried != scale_index:
                raise MixedRotations(
                    f"request {request_id} reads keys of scale number {scale_index}, "
                    f"but block {block_id} of the prefix cache carries number {carried}"
                )
            self._hold(request_id, block_id)

    def copy(self, request_id: str, source: int, target: int, from_index: int, to_index: int) -> None:
        """A request gets a re-rotated copy of a block that it does not hold.

        Raises:
            MixedRotations: when the source does not carry the scale that it is turned from.
        """
        if self._scale_of.get(source) != from_index:
            raise MixedRotations(
                f"request {request_id} copies block {source} as one of scale number {from_index}, "
                f"but it carries number {self._scale_of.get(source)}"
            )
        self.write(request_id, [target], to_index)

    def move(self, request_id: str, source: int, target: int, scale_index: int) -> None:
        """A request's keys of one block are re-rotated: in place, or into a fresh block that it holds instead.

        Raises:
            MixedRotations: when another request reads a block that is re-rotated in place, or holds the fresh one.
        """
        others = self._holders.get(target, set()) - {request_id}
        if others:
            raise MixedRotations(
                f"request {request_id} re-rotates into block {target}, but {', '.join(sorted(others))} holds it"
            )
        if source == target:
            self._num_held[self._scale_of[target]] -= 1
            self._num_held[scale_index] += 1
            self._scale_of[target] = scale_index
            return
        self._let_go(request_id, source)
        self.write(request_id, [target], scale_index)

    def check(self, request_id: str, scale_index: int) -> None:
        """Whether all blocks of a request carry one scale.

        Raises:
            MixedRotations: naming a block that does not.
        """
        for block_id in self._held_by.get(request_id, ()):
            if self._scale_of[block_id] != scale_index:
                raise MixedRotations(
                    f"request {request_id} goes on at scale number {scale_index}, but its block {block_id} carries "
                    f"number {self._scale_of[block_id]}"
                )

    def release(self, request_id: str) -> None:
        """A request gave its blocks back: it finished, was cancelled, or was preempted."""
        for block_id in self._held_by.pop(request_id, ()):
            self._let_go(request_id, block_id)

    def num_held(self, scale_index: int) -> int:
        """Blocks that running requests hold at a scale; a shared block counts once."""
        return self._num_held[scale_index]

    def _hold(self, request_id: str, block_id: int) -> None:
        self._held_by.setdefault(request_id, set()).add(block_id)
        holders = self._holders.setdefault(block_id, set())
        if not holders:
            self._num_held[self._scale_of[block_id]] += 1
        holders.add(request_id)

    def _let_go(self, request_id: str, block_id: int) -> None:
        self._held_by.get(request_id, set()).discard(block_id)
        holders = self._holders[block_id]
        holders.discard(request_id)
        if not holders:
            del self._holders[block_id]
            self._num_held[self._scale_of[block_id]] -= 1

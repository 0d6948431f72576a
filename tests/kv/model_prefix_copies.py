"""The prefixes that a model engine copies from one scale to another for a request that comes in."""

from __future__ import annotations

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.moves import BlockMove, Moves
from posenc_runtime.kv.regime import regime
from tests.kv.model_blocks import NULL_BLOCK
from tests.kv.model_groups import Group, Groups
from tests.kv.model_queues import Queues
from tests.kv.model_request import Request, Turning


class PrefixCopies(Queues):
    """Requests that begin with copies of what another one left at another scale."""

    def __init__(self, deployment: Deployment, *, block_size: int, num_blocks: int, groups: Groups) -> None:
        super().__init__(deployment, block_size=block_size, num_blocks=num_blocks, groups=groups)
        self._taking: list[Request] = []

    def _takes_copies(self, request: Request, hits: list[list[int]]) -> bool:
        """As ``PrefixReuse.find``, and vLLM's admission of a request whose keys are still to be loaded."""
        if self.deployment.prefix_reuse == "exact" or request.refused or request.has_run:
            return False
        found, from_index = hits, request.first
        for index in range(len(self.deployment.scales)):
            elsewhere = self._hits(request, regime(self.deployment, index))
            if len(elsewhere[0]) > len(found[0]):
                found, from_index = elsewhere, index
        num_local, num_blocks = len(hits[0]), len(found[0])
        sources = [block_id for table in found for block_id in table[num_local:] if block_id]
        num_free = len(self.pool.free) - sum(not self.pool.num_users[source] for source in sources)
        if num_local == num_blocks or num_free < -(-(len(request.tokens) + 1) // self.block_size) * len(self.groups):
            return False
        num_reserved = sum(
            self._num_missing(other, self._num_left(other)) for other in self.waiting if other.has_blocks
        )
        kept = [
            [NULL_BLOCK] * num_gone + table[num_gone:]
            for table, num_gone in zip(hits, self._num_gone(num_blocks * self.block_size), strict=True)
        ]
        num_missing = self._num_blocks(request) - num_local * len(self.groups)
        num_missing += sum(bool(hit) and not self.pool.num_users[hit] for table in kept for hit in table)
        if num_missing + num_reserved > num_free:
            request.refused = True
            return False
        self.pool.share(block_id for table in kept for block_id in table if block_id)
        self.pool.share(sources)
        request.num_computed = num_blocks * self.block_size
        moves = {}
        for number, (group, table) in enumerate(zip(self.groups, kept, strict=True)):
            for index, source in enumerate(found[number][len(table) :], start=len(table)):
                if not source or not self._is_copied(group):
                    table.append(source)
                    continue
                (target,) = self.pool.take(1)
                table.append(target)
                moves[target] = BlockMove(number, source, target, index * self.block_size, self.block_size)
            request.tables[number] = table
            request.num_named[number] = num_local if self._is_copied(group) else len(table)
        request.turning = Turning(
            request=request,
            at=request.num_computed,
            from_index=from_index,
            to_index=request.first,
            left=moves,
            reuses_from=num_local * self.block_size,
        )
        request.copied = dict.fromkeys(range(request.turning.reuses_from, request.num_computed), from_index)
        self._taking.append(request)
        return True

    def _is_copied(self, group: Group) -> bool:
        """Keys that are not scaled are the same at every scale: their blocks are shared."""
        return group.scaled

    def _num_gone(self, num_computed: int) -> list[int]:
        return [group.num_gone(num_computed, self.block_size) for group in self.groups]

    def _num_left(self, request: Request) -> int:
        return len(request.tokens) - request.num_computed

    def _begin_copies(self) -> None:
        """As ``PrefixReuse.begin``, when the step is planned."""
        for request in self._taking:
            turning = request.turning
            assert turning is not None
            self.workers.expect(turning)
            request.salt = self.coordinator.reuse(
                request.request_id,
                turning.from_index,
                Moves.of(turning.left.values()),
                num_tokens=len(request.copied),
            )
        self._taking.clear()

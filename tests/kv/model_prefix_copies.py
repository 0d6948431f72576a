"""The prefixes that a model engine copies from one scale to another for a request that comes in."""

from __future__ import annotations

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.moves import BlockMove, Moves
from posenc_runtime.kv.regime import regime
from tests.kv.model_queues import Queues
from tests.kv.model_request import Request, Turning


class PrefixCopies(Queues):
    """Requests that begin with copies of what another one left at another scale."""

    def __init__(self, deployment: Deployment, *, block_size: int, num_blocks: int) -> None:
        super().__init__(deployment, block_size=block_size, num_blocks=num_blocks)
        self._taking: list[Request] = []

    def _takes_copies(self, request: Request, hits: list[int]) -> bool:
        """As ``PrefixReuse.find``, and vLLM's admission of a request whose keys are still to be loaded."""
        if self.deployment.prefix_reuse == "exact" or request.refused or request.has_run:
            return False
        found, from_index = hits, request.first
        for index in range(len(self.deployment.scales)):
            elsewhere = self._hits(request, regime(self.deployment, index))
            if len(elsewhere) > len(found):
                found, from_index = elsewhere, index
        sources = found[len(hits) :]
        num_free = len(self.pool.free) - sum(not self.pool.num_users[source] for source in sources)
        if not sources or num_free < -(-(len(request.tokens) + 1) // self.block_size):
            return False
        num_reserved = sum(self._num_blocks(other) - len(other.table) for other in self.waiting if other.table)
        num_missing = self._num_blocks(request) - len(hits) + sum(not self.pool.num_users[hit] for hit in hits)
        if num_missing + num_reserved > num_free:
            request.refused = True
            return False
        self.pool.share(hits + sources)
        targets = self.pool.take(len(sources))
        request.table, request.num_named, request.num_computed = hits + targets, len(hits), len(found) * self.block_size
        moves = {
            target: BlockMove(0, source, target, index * self.block_size, self.block_size)
            for index, (source, target) in enumerate(zip(sources, targets, strict=True), start=len(hits))
        }
        request.turning = Turning(
            request=request,
            at=request.num_computed,
            from_index=from_index,
            to_index=request.first,
            left=moves,
            reuses_from=len(hits) * self.block_size,
        )
        request.copied = dict.fromkeys(range(request.turning.reuses_from, request.num_computed), from_index)
        self._taking.append(request)
        return True

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

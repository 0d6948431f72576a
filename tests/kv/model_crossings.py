"""The crossings of a model engine: who is preempted or re-rotated before a step, and which blocks are copied."""

from __future__ import annotations

import numpy as np

from posenc_runtime.kv.crossing import blocks_to_copy
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.moves import BlockMove, HeldBlocks, Mask, Moves
from tests.kv.model_queues import Queues
from tests.kv.model_request import Broken, Request, Turning, smallest_scale


class Crossings(Queues):
    """Requests that outgrow their scale."""

    def __init__(self, deployment: Deployment, *, block_size: int, num_blocks: int) -> None:
        super().__init__(deployment, block_size=block_size, num_blocks=num_blocks)
        self._read_by_now: list[int] = []

    def _cross(self) -> list[str]:
        """As ``PosencScheduler._cross``. Returns who is said to be whole again."""
        looked_at = set(self.coordinator.may_be_due())
        for request in list(self.running):
            if request not in self.running:
                continue
            request_id, is_known = request.request_id, len(request.tokens) > request.num_computed
            to_index = self.coordinator.due(request_id, request.num_computed)
            if request_id not in looked_at:
                if to_index is not None and is_known:
                    raise Broken(f"{request_id} is to cross at {request.num_computed} tokens, but nobody looks at it")
            elif not is_known:
                self.coordinator.look_again(request_id)
            elif to_index is None:
                self.coordinator.expect(request_id, len(request.tokens))
            elif self.coordinator.on_crossing(request_id) == "recompute":
                self._recompute(request, to_index)
            else:
                self._rerotate(request, to_index)
        progress = self.coordinator.advance()
        self._read_by_now += progress.read
        return progress.crossed + progress.reused

    def _recompute(self, request: Request, to_index: int) -> None:
        at, from_index = request.num_computed, request.first
        self.coordinator.generated(request.request_id, request.num_output_tokens)
        request.first = smallest_scale(self.deployment, at + 1)
        request.salt = self.coordinator.recompute(request.request_id, to_index, num_tokens=at)
        self._crossed(request, at, from_index, request.first)
        self.preempt(request)

    def _rerotate(self, request: Request, to_index: int) -> None:
        while (is_copied := self._blocks_to_copy(request, held := self._held(request))) is None:
            victim = self.running[-1]
            self.preempt(victim)
            if victim is request:
                return
        copied = set(held.block_id[is_copied].tolist())
        self._evict(set(held.block_id.tolist()) - copied)
        fresh = iter(self.pool.take(len(copied)))
        moves = []
        rows = zip(held.block_id.tolist(), held.first_position.tolist(), held.num_tokens.tolist(), strict=True)
        for index, (block_id, first_position, num_tokens) in enumerate(rows):
            request.table[index] = next(fresh) if block_id in copied else block_id
            moves.append(BlockMove(0, block_id, request.table[index], first_position, num_tokens))
        if copied:
            self._exchanged.add(request)
        request.turning = Turning(
            request=request,
            at=request.num_computed,
            from_index=request.scale_at(request.num_computed - 1),
            to_index=request.scale_at(request.num_computed),
            left={move.target: move for move in moves},
        )
        self.workers.expect(request.turning)
        request.salt = self.coordinator.rerotate(
            request.request_id, to_index, Moves.of(moves), num_tokens=request.num_computed
        )

    def _held(self, request: Request) -> HeldBlocks:
        positions = range(0, request.num_computed, self.block_size)
        block_ids = request.table[: len(positions)]
        in_first_regime = self.coordinator.in_first_regime(request.request_id)
        return HeldBlocks(
            group=np.zeros(len(positions), dtype=np.int64),
            block_id=np.array(block_ids, dtype=np.int64),
            first_position=np.array(positions, dtype=np.int64),
            num_tokens=np.array([min(request.num_computed - position, self.block_size) for position in positions]),
            shared=np.array([self.pool.num_users[block_id] > 1 for block_id in block_ids], dtype=np.bool_),
            cached=np.array(
                [block_id in self.pool.names and in_first_regime for block_id in block_ids], dtype=np.bool_
            ),
        )

    def _blocks_to_copy(self, request: Request, held: HeldBlocks) -> Mask | None:
        return blocks_to_copy(
            held,
            num_free=len(self.pool.free),
            num_needed=self._num_missing(request, len(request.tokens) - request.num_computed),
            num_reserved=len(self.running) - 1,
        )

    def _evict(self, block_ids: set[int]) -> None:
        """Blocks that will be turned in place."""
        self.pool.evict(block_ids)

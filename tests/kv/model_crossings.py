"""The crossings of a model engine: who is preempted or re-rotated before a step, and which blocks are copied."""

from __future__ import annotations

import numpy as np

from posenc_runtime.kv.crossing import blocks_to_copy
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.moves import BlockMove, HeldBlocks, Mask, Moves
from tests.kv.model_groups import Groups
from tests.kv.model_queues import Queues
from tests.kv.model_request import Broken, Request, Turning, smallest_scale


class Crossings(Queues):
    """Requests that outgrow their scale."""

    def __init__(self, deployment: Deployment, *, block_size: int, num_blocks: int, groups: Groups) -> None:
        super().__init__(deployment, block_size=block_size, num_blocks=num_blocks, groups=groups)
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
        self._leave_windows(request)
        while (is_copied := self._blocks_to_copy(request, held := self._held(request))) is None:
            victim = self.running[-1]
            self.preempt(victim)
            if victim is request:
                return
        copied = set(held.block_id[is_copied].tolist())
        self._evict(set(held.block_id.tolist()) - copied)
        fresh = iter(self.pool.take(len(copied)))
        moves = []
        columns = (held.group, held.block_id, held.first_position, held.num_tokens)
        for number, block_id, first_position, num_tokens in zip(*(each.tolist() for each in columns), strict=True):
            target = next(fresh) if block_id in copied else block_id
            request.tables[number][first_position // self.block_size] = target
            moves.append(BlockMove(number, block_id, target, first_position, num_tokens))
        if any(group.scaled and (group.window or group.chunk) for group in self.groups):
            request.lost.clear()
            self._written_by_others([move.target for move in moves])
            self._tell_what_is_held(request, moves)
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

    def _tell_what_is_held(self, request: Request, moves: list[BlockMove]) -> None:
        block_ids, alone = [move.source for move in moves], [move.target for move in moves]
        self.coordinator.holds_only(request.request_id, block_ids, alone=alone)

    def _is_scaled(self, number: int) -> bool:
        return self.groups[number].scaled

    def _held(self, request: Request) -> HeldBlocks:
        held = [
            (number, block_id, first_position)
            for number, table in enumerate(request.tables)
            for block_id, first_position in zip(table, range(0, request.num_computed, self.block_size), strict=False)
            if block_id and self._is_scaled(number)
        ]
        numbers, block_ids, positions = zip(*held, strict=True) if held else ((), (), ())
        can_be_found = self.coordinator.can_be_found(request.request_id)
        return HeldBlocks(
            group=np.array(numbers, dtype=np.int64),
            block_id=np.array(block_ids, dtype=np.int64),
            first_position=np.array(positions, dtype=np.int64),
            num_tokens=np.array(
                [min(request.num_computed - position, self.block_size) for position in positions], dtype=np.int64
            ),
            shared=np.array([self.pool.num_users[block_id] > 1 for block_id in block_ids], dtype=np.bool_),
            cached=np.array([block_id in self.pool.names and can_be_found for block_id in block_ids], dtype=np.bool_),
        )

    def _blocks_to_copy(self, request: Request, held: HeldBlocks) -> Mask | None:
        return blocks_to_copy(
            held,
            num_free=len(self.pool.free),
            num_needed=self._num_missing(request, len(request.tokens) - request.num_computed),
            num_reserved=(len(self.running) - 1) * len(self.groups),
        )

    def _evict(self, block_ids: set[int]) -> None:
        """Blocks that will be turned in place."""
        self.pool.evict(block_ids)

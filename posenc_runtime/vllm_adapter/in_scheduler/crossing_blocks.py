"""The blocks of a request that is about to cross: which it holds, which are copied, and what takes their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import FullAttentionSpec

from posenc_runtime.kv.crossing import blocks_to_copy
from posenc_runtime.kv.ledger import NULL_BLOCK
from posenc_runtime.kv.moves import HeldBlocks, Mask, Moves

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

    from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import SchedulerHalf


class CrossingBlocks:
    """Reads and changes the block tables that vLLM's scheduler keeps of its requests.

    Args:
        num_ahead: tokens behind those of a request that it may need room for: drafted tokens of a step, and those that
            the drafter writes behind them.
    """

    def __init__(self, kv_cache_manager: KVCacheManager, half: SchedulerHalf, *, num_ahead: int = 0) -> None:
        self._manager = kv_cache_manager
        self._half = half
        self._num_ahead = num_ahead
        # A request that goes on may need so many blocks in a step.
        managers = kv_cache_manager.coordinator.single_type_managers
        self._num_grown = sum(1 + cdiv(num_ahead, manager.block_size) for manager in managers)

    def tables(self, request: Request) -> Iterator[tuple[list[KVCacheBlock], int]]:
        """The request's blocks in each KV cache group, and the tokens of a block of the group."""
        for manager in self._manager.coordinator.single_type_managers:
            yield manager.req_to_blocks[request.request_id], manager.block_size

    def num_freed(self, request: Request) -> int:
        """How many blocks come free when a request gives all of its blocks back."""
        return sum(block.ref_cnt == 1 and not block.is_null for blocks, _ in self.tables(request) for block in blocks)

    def leave_windows(self, request: Request) -> None:
        """Give back the blocks that have left the request's sliding windows: they need neither turns nor room.

        vLLM does the same before it allocates blocks, and so at the latest when the request runs again.
        """
        self._manager.remove_skipped_blocks(
            request.request_id,
            max(request.num_computed_tokens - request.num_in_flight_tokens, 0),
            num_prompt_tokens=request.num_prompt_tokens,
        )

    def evict(self, block_ids: list[int]) -> None:
        """Take blocks of a request out of the prefix cache; they are given in the order of its tokens.

        The last one goes first, as when vLLM evicts. Dynamo's index of KV events forgets a block's followers with it,
        and fails at an event that removes one of them after that.
        """
        for block_id in reversed(block_ids):
            self._manager.block_pool.evict_blocks({block_id})

    def name_again(self, request: Request) -> None:
        """Let vLLM put all blocks of a request into the prefix cache under its present names, when it runs again."""
        for manager in self._manager.coordinator.single_type_managers:
            manager.num_cached_block[request.request_id] = 0

    def to_copy(
        self, request: Request, *, num_coming: int, num_running: int, max_tokens: int
    ) -> tuple[HeldBlocks, Mask] | None:
        """The blocks that a request holds, and which of them are to be copied; None if too few blocks are free.

        Args:
            num_coming: blocks that will be free before the crossing begins.
            num_running: requests that run, this one among them.
            max_tokens: the most tokens that a step computes.
        """
        held, coordinator = self._held(request), self._manager.coordinator
        num_computed, num_groups = request.num_computed_tokens, len(coordinator.single_type_managers)
        num_tokens = min(request.num_tokens, num_computed + max_tokens) + self._num_ahead
        num_tokens = min(num_tokens, self._manager.max_model_len)
        is_copied = blocks_to_copy(
            held,
            num_free=self._manager.block_pool.get_num_free_blocks() + num_coming,
            num_needed=coordinator.get_num_blocks_to_allocate(
                request_id=request.request_id,
                num_tokens=num_tokens,
                new_computed_blocks=((),) * num_groups,
                num_encoder_tokens=0,
                total_computed_tokens=num_computed,
                num_local_computed_tokens=num_computed,
                num_tokens_main_model=num_tokens,
            ),
            # Every other running request may need more blocks in this very step.
            num_reserved=(num_running - 1) * self._num_grown,
        )
        return None if is_copied is None else (held, is_copied)

    def ahead(self, request: Request) -> list[int]:
        """Ids of the blocks with scaled keys that a request holds behind its computed tokens, for drafted tokens.

        Whatever a drafter wrote there is not read again: a step writes its slots before it reads them.
        """
        if not self._num_ahead:
            return []
        return [
            block.block_id
            for group, (blocks, block_size) in enumerate(self.tables(request))
            if group in self._half.scaled_groups
            for block in blocks[cdiv(request.num_computed_tokens, block_size) :]
            if not block.is_null
        ]

    def exchange(self, request: Request, held: HeldBlocks, is_copied: Mask) -> Moves:
        """Put fresh blocks in the place of those that are to be copied. The old ones stay held until they were read.

        Returns:
            The moves of the crossing: into the fresh blocks, and in place for the other blocks.
        """
        target = held.block_id.copy()
        if is_copied.any():
            tables = list(self.tables(request))
            fresh = self._manager.block_pool.get_new_blocks(int(is_copied.sum()))
            groups, positions = held.group[is_copied].tolist(), held.first_position[is_copied].tolist()
            for group, first_position, block in zip(groups, positions, fresh, strict=True):
                table, block_size = tables[group]
                table[first_position // block_size] = block
            target[is_copied] = [block.block_id for block in fresh]
        if self._has_scaled_windows():
            # Shared blocks are copied, so no target is shared.
            self._half.coordinator.holds_only(request.request_id, held.block_id, alone=target)
        return Moves(
            group=held.group,
            source=held.block_id,
            target=target,
            first_position=held.first_position,
            num_tokens=held.num_tokens,
        )

    def _has_scaled_windows(self) -> bool:
        """Whether vLLM takes blocks with scaled keys from requests that still run."""
        managers = self._manager.coordinator.single_type_managers
        return any(
            not isinstance(managers[group].kv_cache_spec, FullAttentionSpec) for group in self._half.scaled_groups
        )

    def _held(self, request: Request) -> HeldBlocks:
        """The blocks with a request's keys that are scaled; without those that have left a sliding window."""
        columns = []
        can_be_found = self._half.coordinator.can_be_found(request.request_id)
        for group, (blocks, block_size) in enumerate(self.tables(request)):
            if group not in self._half.scaled_groups:
                continue
            blocks = blocks[: cdiv(request.num_computed_tokens, block_size)]
            block_id = np.array([block.block_id for block in blocks], dtype=np.int64)
            first_position = np.arange(len(blocks)) * block_size
            column = (
                np.full(len(blocks), group),
                block_id,
                first_position,
                np.minimum(request.num_computed_tokens - first_position, block_size),
                np.array([block.ref_cnt > 1 for block in blocks], dtype=np.bool_),
                np.array([can_be_found and block.block_hash is not None for block in blocks], dtype=np.bool_),
            )
            is_real = block_id != NULL_BLOCK
            columns.append([values[is_real] for values in column])
        group_of, block_id, position, num_tokens, shared, cached = map(np.concatenate, zip(*columns, strict=True))
        return HeldBlocks(
            group=group_of,
            block_id=block_id,
            first_position=position,
            num_tokens=num_tokens,
            shared=shared,
            cached=cached,
        )

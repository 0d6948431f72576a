"""A new request whose prefix is cached at another scale gets re-rotated copies of the prefix's blocks.

Blocks of KV cache groups that are not scaled hold the same at every scale: the request shares them, and copies nothing.

vLLM handles such a request as one whose keys a connector loads: the request gets its blocks, waits beside the queue
while the workers make the copies, at most the re-rotation budget in each step, and runs when all are made. Decision 23.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vllm.utils.math_utils import cdiv
from vllm.v1.request import RequestStatus

from posenc_runtime.kv.moves import BlockMove, Moves

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

    from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import SchedulerHalf


@dataclasses.dataclass(frozen=True)
class _Found:
    """A prefix that is cached at another scale. Its blocks are held, so that nobody overwrites them.

    Attributes:
        num_local_tokens: tokens that are cached at the request's own scale; these are not copied.
        num_tokens: length of the prefix, the local ones included.
        blocks: for each KV cache group, the prefix's blocks after the local ones.
    """

    request: Request
    from_index: int
    num_local_tokens: int
    num_tokens: int
    blocks: tuple[list[KVCacheBlock], ...]


class PrefixReuse:
    """Looks up a request's prefix at all scales, and plans the copies into the blocks that vLLM allocates for it."""

    def __init__(self, kv_cache_manager: KVCacheManager, half: SchedulerHalf) -> None:
        self._manager = kv_cache_manager
        self._half = half
        self._found: dict[str, _Found] = {}
        self._refused: set[str] = set()
        # Hashes of requests that wait for free blocks: kept, so that no prompt is hashed again in every step.
        self._hashes: dict[str, tuple[Request, dict[int, Sequence[bytes]]]] = {}

    def find(self, request: Request, num_local_tokens: int, max_tokens: int) -> None:
        """Look for a longer cached prefix at the other scales than at the request's own; offer it if there is one.

        Args:
            num_local_tokens: tokens of the prefix that are cached at the request's own scale.
            max_tokens: longest prefix that the request may find.
        """
        # A preempted or recomputed request replays its own crossings, without a prefix of another scale. A session of
        # streaming input has no final response that could say what it reused.
        if request.num_preemptions or request.resumable or request.request_id in self._refused:
            return
        if not self._manager.prefix_cache_lookup_enabled(request):
            return
        best: _Found | None = None
        if request.request_id not in self._hashes:
            self._hashes[request.request_id] = request, self._half.hashes_at_other_scales(request)
        for index, block_hashes in self._hashes[request.request_id][1].items():
            blocks, num_tokens, _ = self._manager.coordinator.find_longest_cache_hit(block_hashes, max_tokens)
            if num_tokens > (best.num_tokens if best else num_local_tokens):
                behind = tuple(
                    of_group[num_local_tokens // manager.block_size :]
                    for of_group, manager in zip(blocks, self._manager.coordinator.single_type_managers, strict=True)
                )
                best = _Found(request, index, num_local_tokens, num_tokens, behind)
        if best is None or not self._has_room(best):
            return
        for blocks in best.blocks:
            self._manager.block_pool.touch(blocks)
        self._found[request.request_id] = best
        self._half.offered[request.request_id] = best.num_tokens - num_local_tokens

    def begin(self) -> None:
        """After a step was scheduled: begin the copies of requests that got blocks, release the others' prefixes."""
        found, self._found = self._found, {}
        self._half.offered.clear()
        self._hashes = {
            request_id: (request, hashes)
            for request_id, (request, hashes) in self._hashes.items()
            if request.status == RequestStatus.WAITING
        }
        for request_id, prefix in found.items():
            if prefix.request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                self._half.reuse(
                    prefix.request,
                    prefix.from_index,
                    self._moves(prefix),
                    num_tokens=prefix.num_tokens - prefix.num_local_tokens,
                )
            else:
                # The blocks that we hold may be those that the request lacked: release them, let it prefill normally.
                self._refused.add(request_id)
                for blocks in prefix.blocks:
                    self._manager.block_pool.free_blocks(reversed(blocks))

    def waiting(self, requests: Iterable[Request]) -> list[Request]:
        """The requests that hold copies of a prefix, or blocks for the copies, and do not run yet."""
        return [
            request
            for request in requests
            if request.status in (RequestStatus.WAITING, RequestStatus.WAITING_FOR_REMOTE_KVS)
            and request.num_computed_tokens
            and not request.resumable
        ]

    def give_up(self, request: Request) -> None:
        """Let a request that has not run yet begin without a copied prefix; the caller releases what it was to copy."""
        self._manager.free(request)
        request.num_computed_tokens = 0
        request.status = RequestStatus.WAITING  # workers do not know the request yet

    def forget(self, request_id: str) -> None:
        """Forget a request that ended."""
        self._refused.discard(request_id)
        self._hashes.pop(request_id, None)

    def _has_room(self, found: _Found) -> bool:
        """Whether the block pool has room for the cached prefix, its copy, and the rest of the request."""
        pool = self._manager.block_pool
        num_unheld = sum(block.ref_cnt == 0 and not block.is_null for blocks in found.blocks for block in blocks)
        num_needed = 0
        for manager in self._manager.coordinator.single_type_managers:
            most = manager.max_admission_blocks_per_request  # of a layer with a window, None of another one
            num_blocks: int = cdiv(found.request.num_tokens + 1, manager.block_size)
            num_needed += num_blocks if most is None else min(num_blocks, most)
        room: bool = pool.get_num_free_blocks() - num_unheld >= num_needed + self._manager.watermark_blocks
        return room

    def _moves(self, found: _Found) -> Moves:
        """The copies into the blocks that vLLM has allocated; where the keys are not scaled, the cached blocks replace
        those."""
        moves = []
        for group, (blocks, manager) in enumerate(
            zip(found.blocks, self._manager.coordinator.single_type_managers, strict=True)
        ):
            first = found.num_local_tokens // manager.block_size
            table = manager.req_to_blocks[found.request.request_id]
            for index, (source, target) in enumerate(zip(blocks, table[first:], strict=False), start=first):
                if source.is_null or target.is_null:
                    self._manager.block_pool.free_blocks([source])
                    continue
                if group not in self._half.scaled_groups:
                    table[index] = source
                    self._manager.block_pool.free_blocks([target])
                    continue
                moves.append(
                    BlockMove(
                        group=group,
                        source=source.block_id,
                        target=target.block_id,
                        first_position=index * manager.block_size,
                        num_tokens=manager.block_size,
                    )
                )
            if group not in self._half.scaled_groups:
                # The shared blocks keep the names that they have in the prefix cache.
                manager.num_cached_block[found.request.request_id] = len(table)
        return Moves.of(moves)

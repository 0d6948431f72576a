"""vLLM's scheduler, in which a request that has outgrown its scale crosses to the next scale before it goes on.

``kv.coordinator`` decides. For a crossing, this file changes vLLM's blocks, queues and hashes; for the reuse of
prefixes, ``prefix_reuse`` does. vLLM gets this class as ``scheduler_cls``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from posenc_runtime.kv.chunks import Chunks, even_position
from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.in_scheduler.block_tables import replace_as_new, replace_as_resumed
from posenc_runtime.vllm_adapter.in_scheduler.crossing_blocks import CrossingBlocks
from posenc_runtime.vllm_adapter.in_scheduler.prefix_reuse import PrefixReuse

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from posenc_runtime.kv.moves import HeldBlocks, Mask
    from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import SchedulerHalf


class PosencScheduler(AsyncScheduler):
    """Decides crossings before it schedules a step, because scheduling may give a block to another request.

    With asynchronous scheduling, a request that has reached the length of its scale sits out until its last token is
    known: its block table can only be exchanged when all of its tokens are there. No other request waits. Decision 9.
    """

    dynamic_sd_lookup: list[int] | None

    def __new__(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Self:
        """Extend the scheduler that vLLM would take itself: ``AsyncScheduler`` or ``Scheduler``."""
        is_ahead = vllm_config.scheduler_config.async_scheduling
        scheduler: Self = super().__new__(cls if is_ahead else _InStep)
        return scheduler

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._half: SchedulerHalf = self.connector.scheduler_half
        self._coordinator = self._half.coordinator
        self._drafts_unseen = bool(self.num_spec_tokens) and self.scheduler_config.async_scheduling
        num_ahead = self.num_spec_tokens + self.num_lookahead_tokens
        self._blocks = CrossingBlocks(self.kv_cache_manager, self._half, num_ahead=num_ahead)
        if self.num_spec_tokens and self.dynamic_sd_lookup is None:
            # vLLM makes the first step of a resumed request as long as one with drafted tokens, and ends if we shorten
            # that step. Where the number of drafted tokens depends on that of requests, it does not; so let it depend.
            self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)
        self._reblocked: set[str] = set()  # requests whose block table the workers must replace, not append to
        self._read_by_now: list[int] = []  # sources of copies that the step being planned makes
        self._held_back: set[str] = set()  # requests to preempt when no step under way has them
        # Where chunks have to end at blocks, they stay vLLM's.
        self._chunks = None if self.need_mamba_block_aligned_split else _chunks(self.vllm_config)
        self._reuse = PrefixReuse(self.kv_cache_manager, self._half) if self._half.deployment.reuses_prefixes else None

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self._cross()
        if self._chunks:
            self._chunks.begin_step(sum(self.get_request_counts()))
        pause_state = self.pause_state
        if self._held_back and pause_state == PauseState.UNPAUSED:
            # A request that is to cross waits for the free blocks: a newly admitted one would be preempted again.
            self._pause_state = PauseState.PAUSED_NEW
        try:
            output: SchedulerOutput = super().schedule(throttle_prefills)
        finally:
            self._pause_state = pause_state
        if not releases.PAUSES_ADMIT_NOBODY.is_here:
            self._place_crossing()  # last: vLLM has put requests it could not schedule in the queue
        if self._reuse:
            self._reuse.begin()
        return output

    def _cross(self) -> None:
        self._held_back.clear()
        for request in self._looked_at():
            if request.status != RequestStatus.RUNNING:
                continue  # was preempted for another crossing; it is looked at again when it runs
            to_index = self._coordinator.due(request.request_id, request.num_computed_tokens)
            if to_index is None:
                self._half.expect(request)
                continue
            if request.request_id in self._held_back or request.num_tokens <= request.num_computed_tokens:
                # It will be preempted for another crossing, or its last token is in flight.
                self._coordinator.look_again(request.request_id)
                continue
            self._half.waits(request)
            if self._coordinator.on_crossing(request.request_id) == "recompute":
                self._recompute(request, to_index)
            elif not self._rerotate(request, to_index) and request.status == RequestStatus.RUNNING:
                self._coordinator.look_again(request.request_id)
        progress = self._coordinator.advance()
        self._read_by_now += progress.read
        # To vLLM, a copied prefix is a prefix that a connector has loaded.
        self.finished_recving_kv_req_ids.update(progress.reused)

    def _looked_at(self) -> list[Request]:
        """The requests that may have to cross now, the most important first."""
        names = set(self._coordinator.may_be_due())
        if len(names) > 1:
            return [request for request in self.running if request.request_id in names]
        return [self.requests[name] for name in names]

    def _recompute(self, request: Request, to_index: int) -> None:
        self._half.recompute(request, to_index)
        self.running.remove(request)
        self._preempt_request(request, time.monotonic())

    def _place_crossing(self) -> None:
        """While vLLM admits no new requests, count a request that has to cross among those that are still served.

        In that state, vLLM serves the requests that run or hold blocks, and leaves the others in the queue. A request
        that has to cross may hold no blocks although its answer has begun. Decision 12.
        """
        if self.pause_state == PauseState.PAUSED_NEW:
            under_way = [request for request in self.waiting if self._half.has_to_cross(request)]
            self.waiting.remove_requests(under_way)
            for request in under_way:
                self.kv_holding_waiting.add_request(request)
        elif self.kv_holding_waiting:
            queued = [request for request in self.kv_holding_waiting if not self._holds_kv_blocks(request)]
            self.kv_holding_waiting.remove_requests(queued)
            self.waiting.prepend_requests(reversed(queued))

    def _rerotate(self, request: Request, to_index: int) -> bool:
        """Begin a request's crossing by re-rotation. False: it has to wait for free blocks, or was preempted itself."""
        self._blocks.leave_windows(request)
        chosen = self._make_room(request)
        if chosen is None:
            return False
        held, is_copied = chosen
        self._blocks.evict(held.block_id[~is_copied].tolist())
        if is_copied.any():
            self._reblocked.add(request.request_id)
        ahead = self._blocks.ahead(request)
        self._half.rerotate(request, to_index, self._blocks.exchange(request, held, is_copied), ahead)
        if not self._coordinator.is_private(request.request_id):
            self._blocks.name_again(request)
        return True

    def _make_room(self, request: Request) -> tuple[HeldBlocks, Mask] | None:
        """Preempt requests until there are free blocks for the copies that a request's crossing needs.

        A request in a step under way keeps its blocks until the step's result is in: it is held back from new steps,
        and the crossing waits.

        Returns:
            The blocks that the request has, and which of them are to be copied; None: not in this step.
        """
        num_coming = 0  # blocks that come free when the requests held back are preempted
        while (
            chosen := self._blocks.to_copy(
                request,
                num_coming=num_coming,
                num_running=len(self.running),
                max_tokens=self.max_num_scheduled_tokens,
            )
        ) is None:
            victim = self._least_important()
            if victim is request and self._held_back:
                return None
            if self._request_blocks_can_be_freed(victim):
                self.running.remove(victim)
                self._preempt_request(victim, time.monotonic())
            else:
                self._held_back.add(victim.request_id)
                num_coming += self._blocks.num_freed(victim)
            if victim is request:
                return None
        return None if num_coming else chosen

    def _least_important(self) -> Request:
        """The request that vLLM itself would preempt, of those that are not held back."""
        if self.policy == SchedulingPolicy.PRIORITY:
            running = [request for request in self.running if request.request_id not in self._held_back]
            return max(running, key=lambda request: (request.priority, request.arrival_time))
        return next(request for request in reversed(self.running) if request.request_id not in self._held_back)

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Never schedule a token past the length of its request's scale, nor a request that is crossing; limit chunks.

        vLLM calls this for every request that it is about to schedule, running or waiting, before it allocates blocks.
        """
        request_id = request.request_id
        if request_id in self._held_back:
            num_new_tokens = 0
        else:
            num_new_tokens = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
            num_new_tokens = self._coordinator.allowance(request_id, num_computed_tokens, num_new_tokens)
            if self._drafts_unseen and num_new_tokens > 1:
                num_new_tokens = self._without_last_drafts(request, num_computed_tokens, num_new_tokens)
        if not num_new_tokens:
            # It sits out this step. Workers keep the drafted tokens of the step before alone.
            request.spec_token_ids = []
            return 0
        if self._chunks and num_new_tokens > 1 and (unread := request.num_tokens - num_computed_tokens) > 1:
            return self._chunks.allow(position=num_computed_tokens, num_unread=unread, num_tokens=num_new_tokens)
        return num_new_tokens

    def _without_last_drafts(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Leave drafted tokens out of a step that would end a scale, where steps are planned before drafts are checked.

        With them the request might be at its last position, and would have to sit out until that is known. Rejected
        tokens would make it sit out again.
        """
        num_sure = request.num_tokens + request.num_output_placeholders - num_computed_tokens
        reaches_end = self._coordinator.allowance(request.request_id, num_computed_tokens + num_new_tokens, 1) == 0
        return min(num_new_tokens, num_sure) if reaches_end else num_new_tokens

    def _get_local_prefix_cache_hit(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> tuple[KVCacheBlocks, int, int, bool]:
        """Limit a cached prefix to one token less than the length of the scale at which the request begins or goes on.

        This concerns a preempted request that repeats its crossings. It runs with the one token left, and crosses
        before the next step. With all tokens found, it would be due to cross before it runs at all, and vLLM stops
        admitting requests at the first one that cannot be scheduled.
        """
        if self._coordinator.shares_histories:
            self._choose_history(request, max_cache_hit_length)
        max_tokens = min(request.num_tokens, self._coordinator.length_of_scale(request.request_id)) - 1
        if max_cache_hit_length is not None:
            max_tokens = min(max_tokens, max_cache_hit_length)
        found: tuple[KVCacheBlocks, int, int, bool]
        if not releases.PREFIX_HITS_WITHOUT_BOUND.is_here:
            found = super()._get_local_prefix_cache_hit(request, max_tokens)
        elif max_tokens == request.num_tokens - 1 or not self.kv_cache_manager.prefix_cache_lookup_enabled(request):
            found = super()._get_local_prefix_cache_hit(request)
        else:
            blocks, num_tokens, _ = self.kv_cache_manager.coordinator.find_longest_cache_hit(
                request.block_hashes, max_tokens
            )
            found = self.kv_cache_manager.create_kv_cache_blocks(blocks), num_tokens, 0, False
        if self._reuse:
            self._reuse.find(request, num_local_tokens=found[1], max_tokens=max_tokens)
        return found

    def _choose_history(self, request: Request, max_cache_hit_length: int | None) -> None:
        """Let a waiting request go on from the longest beginning that is cached, of its own first scale or another."""
        self._half.begin(request)
        if not self.kv_cache_manager.prefix_cache_lookup_enabled(request):
            return
        longest = request.num_tokens if max_cache_hit_length is None else max_cache_hit_length
        chosen, most = None, -1
        for found, hashes in self._half.histories(request):
            if most < 0:
                most = self._num_cached(request.block_hashes, min(longest, request.num_tokens - 1))
            num_tokens = self._num_cached(hashes, min(longest, found.most_tokens))
            if num_tokens >= found.fewest_tokens and num_tokens > most:
                chosen, most = found, num_tokens
        if chosen is not None:
            self._half.go_on_from(request, chosen, num_tokens=most)

    def _num_cached(self, block_hashes: Sequence[bytes], max_tokens: int) -> int:
        """How many tokens of a prefix the cache has under these hashes."""
        found: int = self.kv_cache_manager.coordinator.find_longest_cache_hit(block_hashes, max_tokens)[1]
        return found

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        self._give_back(self._half.preempted(request))
        self._reblocked.discard(request.request_id)
        self._forget_uncomputed(request)
        # A request that is resumed in this very step must be new to the workers' batch.
        self.prev_step_scheduled_req_ids.discard(request.request_id)
        super()._preempt_request(request, timestamp, drop_stale_output)

    def _forget_uncomputed(self, request: Request) -> None:
        """Evict from the prefix cache the blocks of a request that no step will fill. Decision 24.

        vLLM puts blocks into the prefix cache when it allocates them. With priorities, it may then preempt the request
        out of the very step that is being scheduled and was to fill them.
        """
        self._blocks.evict(
            [
                block.block_id
                for blocks, block_size in self._blocks.tables(request)
                for block in blocks[request.num_computed_tokens // block_size :]
                if not block.is_null
            ]
        )

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Where running requests are to begin anew, requests that wait with a copied prefix begin anew as well.

        vLLM refuses the reset while any block is held: by requests whose keys a connector loads, or by steps under way,
        after which a connector might still write. Our connector writes in the order of steps, so we free these blocks,
        unless there are tiers beside it.
        """
        if reset_running_requests:
            if self._reuse:
                self._give_up_copies(self._reuse)
            while self.running:
                self._preempt_request(self.running.pop(), time.monotonic(), drop_stale_output=True)
            while self.deferred_frees and self._half.tiers is None:
                self.kv_cache_manager.block_pool.free_blocks(reversed(self.deferred_frees.popleft()[1]))
        done: bool = super().reset_prefix_cache(reset_running_requests, reset_connector)
        return done

    def _give_up_copies(self, reuse: PrefixReuse) -> None:
        waiting = reuse.waiting(self.requests.values())
        for queue in (self.waiting, self.kv_holding_waiting):
            queue.remove_requests(waiting)
        for request in reversed(waiting):
            self._give_back(self._half.preempted(request))
            reuse.give_up(request)
            self.finished_recving_kv_req_ids.discard(request.request_id)
            self.deferred_waiting.discard(request)
            self._inflight_prefills.discard(request)
            if not releases.NO_FETCH_STAGES.is_here:
                self._set_kv_fetch_stage(request, None)
            self.waiting.prepend_request(request)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """Count the LoRA adapter of a request that sits out for its crossing: the request may be back in this step."""
        if releases.ADAPTERS_OF_A_STEP_ALONE.is_here and self.lora_config and request.lora_request:
            adapters = {other.lora_request.lora_int_id for other in self.running if other.lora_request}
            if len(adapters | {request.lora_request.lora_int_id}) > self.lora_config.max_loras:
                return False
        ready: bool = super()._handle_blocked_waiting_request(request)
        return ready

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Where a stop string may end a request, every output has the report that the last one would have.

        The front end finds stop strings, and then only tells the engine to forget the request. Decision 14.
        """
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        if self._half.ended_by_text:
            for of_client in outputs.values():
                for output in of_client.outputs:
                    if output.request_id in self._half.ended_by_text:
                        output.kv_transfer_params = self._half.said_so_far(self.requests[output.request_id])
        return outputs

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        self._give_back(self._half.abandoned(request))
        self._reblocked.discard(request.request_id)
        if self._reuse:
            self._reuse.forget(request.request_id)
        # Copies need no delay: workers make those that were begun before any later step writes to these blocks. A tier
        # may go on loading into them; where there are tiers, no request copies a prefix.
        delayed = delay_free_blocks and self._half.tiers is not None
        return super()._free_request(request, delay_free_blocks=delayed)

    def _give_back(self, block_ids: Iterable[int]) -> None:
        pool = self.kv_cache_manager.block_pool
        pool.free_blocks([pool.blocks[block_id] for block_id in block_ids])

    def _build_kv_connector_meta(
        self, connector: KVConnectorBase_V1, scheduler_output: SchedulerOutput
    ) -> KVConnectorMetadata:
        # Workers carry out steps in order: a request that gets a source now writes to it after it was read.
        if self._read_by_now:
            sources, self._read_by_now = self._read_by_now, []
            self._give_back(reversed(sources))
        if not self._reblocked:
            return super()._build_kv_connector_meta(connector, scheduler_output)
        reblocked = self._reblocked.intersection(scheduler_output.num_scheduled_tokens)
        self._reblocked -= reblocked
        requests = [self.requests[request_id] for request_id in reblocked]
        get_block_ids = self.kv_cache_manager.get_block_ids
        if self.use_v2_model_runner:
            # Make the plan first: in it, a request reported as preempted would go back to its first scale.
            metadata = super()._build_kv_connector_meta(connector, scheduler_output)
            replace_as_new(scheduler_output, requests, get_block_ids)
            return metadata
        # Make the plan last: it then sees the whole block table of a request reported as resumed, and checks that every
        # block carries the request's scale.
        replace_as_resumed(scheduler_output, requests, get_block_ids)
        return super()._build_kv_connector_meta(connector, scheduler_output)


def _chunks(vllm_config: VllmConfig) -> Chunks | None:
    """On a CPU, what keeps steps short where ``long_prefill_token_threshold`` asks for that; None elsewhere.

    A GPU computes many tokens in the time of one, so that costs do not add up there. Decision 71.
    """
    config = vllm_config.scheduler_config
    if not current_platform.is_cpu() or config.long_prefill_token_threshold == 0:
        return None
    return Chunks(
        step_tokens=config.max_num_batched_tokens,
        chunk_tokens=config.long_prefill_token_threshold,
        even_position=even_position(vllm_config.model_config.get_hidden_size()),
    )


class _InStep(PosencScheduler):
    """Without asynchronous scheduling: the result of each step is in before the next step is scheduled."""

    _update_after_schedule = Scheduler._update_after_schedule
    if releases.OUTPUTS_AHEAD_APART.is_here:
        _update_request_with_output = Scheduler._update_request_with_output

"""The connector's half in the scheduler: vLLM's requests and blocks, translated for ``kv.coordinator``."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.utils import length_from_prompt_token_ids_or_embeds

from posenc_runtime.kv.admission import Admission, admit, choose_on_crossing
from posenc_runtime.kv.budget import Budget, given_budget
from posenc_runtime.kv.coordinator import ScaleCoordinator
from posenc_runtime.kv.counts import TOTAL
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.histories import History
from posenc_runtime.kv.moves import Moves
from posenc_runtime.kv.prefills import Prefills
from posenc_runtime.kv.regime import history, of_client, regime, salted
from posenc_runtime.kv.step_plan import StepPlan
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import ADMISSION_TOKENS, ON_CROSSING, PREFILLED_SCALE, PROMPT_ALONE
from posenc_runtime.vllm_adapter.in_scheduler.block_hashes import CrossedHashes, PrivateHashes, SaltedHashes
from posenc_runtime.vllm_adapter.in_scheduler.tiers import Tiers

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.posenc")


@dataclasses.dataclass
class PosencMetadata(KVConnectorMetadata):
    """A step's plan on its way to the workers."""

    plan: StepPlan


class SchedulerHalf:
    """Drives a coordinator from the scheduler's hooks.

    Args:
        block_sizes: tokens per block of each KV cache group, in vLLM's order.
        num_blocks: blocks of the pool, vLLM's null block among them.
        images_have_axes: whether the positions of images differ from their indices (M-RoPE), so that the keys of a
            request with images cannot be turned by index: it is computed again when it crosses. Decision 67.
        num_drafted: the most tokens that are drafted for a request in a step.

    Attributes:
        hash_block_size: tokens that each of vLLM's block hashes covers; the connector sets it when vLLM says it.
        coordinator: decides scales and keeps the books; the scheduler asks it directly where no request of vLLM's needs
            a translation.
        offered: by request, for the step that is being scheduled: how many tokens cached at another scale it may have
            copies of.
        scaled_groups: numbers of the KV cache groups whose keys are scaled; the connector sets them, too. The blocks of
            the other groups have no scale: a state, or keys that are rotated alike at every scale, or not at all.
        tiers: what connectors to other tiers see of requests, where there are such connectors.
        takes_histories: whether somebody looks for what requests have cached after a crossing: later turns, or routers.
    """

    def __init__(
        self,
        deployment: Deployment,
        block_sizes: Sequence[int],
        *,
        num_blocks: int,
        images_have_axes: bool = False,
        num_drafted: int = 0,
    ) -> None:
        self.deployment = deployment
        self.hash_block_size = min(block_sizes)
        self.scaled_groups = frozenset(range(len(block_sizes)))
        self.takes_histories = False
        self.tiers: Tiers | None = None
        self.coordinator = ScaleCoordinator(deployment, num_blocks=num_blocks, num_drafted=num_drafted)
        self._block_sizes = block_sizes
        self._images_have_axes = images_have_axes
        self._num_drafted = num_drafted
        # Clients' salts and admissions, of requests that the scheduler does not know yet.
        self._arrived: dict[str, tuple[str | None, Admission]] = {}
        self._client_salts: dict[str, str | None] = {}
        # By first scale: salt and hashes of requests whose present ones are others, or were looked up by others.
        self._first_hashes: dict[str, dict[int, tuple[str | None, Any]]] = {}
        self._waiting_since: dict[str, float] = {}  # since when requests wait for their crossing
        self._wait_seconds: list[float] = []
        self._budget_report: dict[str, Any] = {}
        self._prefills = Prefills()
        if deployment.rerotates and deployment.rerotate_budget_tokens is not None:
            self.set_budget(given_budget(deployment.rerotate_budget_tokens))
        self.ended_by_text: set[str] = set()  # requests that a stop string may end, which vLLM does outside the engine
        self.offered: dict[str, int] = {}

    def arriving(self, request: EngineCoreRequest) -> None:
        """Put the regime into the salt before vLLM hashes the prompt. Runs on the thread that takes requests in."""
        if request.request_id in self._client_salts:
            return  # a further input of a session, whose salt is set already
        max_tokens = request.sampling_params.max_tokens if request.sampling_params else None
        try:
            num_prompt_tokens = length_from_prompt_token_ids_or_embeds(request.prompt_token_ids, request.prompt_embeds)
            admission = self._admit(request, num_prompt_tokens, max_tokens)
        except ValueError:
            return  # the scheduler's thread meets the same error and reports it
        own = of_client(self.deployment, admission.scale_index, request.cache_salt)
        self._arrived[request.request_id] = own, admission
        request.cache_salt = salted(own, regime(self.deployment, admission.scale_index))

    def turned_away(self, request_id: str) -> None:
        """Forget a request that arrived but does not reach the scheduler."""
        self._arrived.pop(request_id, None)

    def set_scaled_groups(self, scaled_groups: frozenset[int]) -> None:
        """Take in which KV cache groups are scaled. A crossing gives the blocks of these groups new contents and names.

        Raises:
            Unsupported: when requests are to go on from what others have cached, and blocks of a group are not scaled:
                these keep the names that they had before a crossing, although others may hold them.
        """
        self.scaled_groups = scaled_groups
        all_scaled = len(scaled_groups) == len(self._block_sizes)
        if self.deployment.continues and not all_scaled:
            raise Unsupported(
                "prefix_reuse must be exact or rerotate for a model in which some layers cache what no scale changes, "
                f"got continue and {len(scaled_groups)} scaled of {len(self._block_sizes)} KV cache groups: blocks of "
                "the others would keep the names that they had before a crossing. Set prefix_reuse to exact or rerotate"
            )
        self.coordinator.shares_histories = self.takes_histories and all_scaled

    def set_budget(self, budget: Budget) -> None:
        """Set, once, how many cached tokens are re-rotated before a step at most; log and report the figure."""
        logger.info("at most %d cached tokens are re-rotated before a step: %s", budget.tokens, budget.reason)
        self.coordinator.budget_tokens = budget.tokens
        self._budget_report = {"rerotate_budget_tokens": {TOTAL: budget.tokens}}

    def on_new_request(self, request: Request) -> None:
        """Open the request's books. If it did not pass ``arriving``, admit it here, and hash its prompt again.

        That is early enough: the scheduler has not looked up its prefix yet.
        """
        request_id = request.request_id
        if request_id in self._arrived:
            self._client_salts[request_id], admission = self._arrived.pop(request_id)
        else:
            admission = self._admit(request, request.num_prompt_tokens, request.max_tokens)
            self._client_salts[request_id] = of_client(self.deployment, admission.scale_index, request.cache_salt)
        regime_name = self.coordinator.admitted(request_id, admission, num_prompt_tokens=request.num_prompt_tokens)
        if request.sampling_params and request.sampling_params.stop:
            self.ended_by_text.add(request_id)
        salt = self._salt(request, regime_name)
        if salt != request.cache_salt:
            request.cache_salt = salt
            request.block_hashes.clear()
            request.update_block_hashes()
        self._prefills.arrived(request_id, request.num_prompt_tokens)

    def expect(self, request: Request) -> None:
        """Look at a request again when it may have reached the length of its scale."""
        self.coordinator.expect(request.request_id, request.num_tokens + request.num_output_placeholders)

    def waits(self, request: Request) -> None:
        """Note that a request waits for its crossing from now on, unless it waits already."""
        self._waiting_since.setdefault(request.request_id, time.perf_counter())

    def has_to_cross(self, request: Request) -> bool:
        """Whether a request was to cross and has not run since."""
        return request.request_id in self._waiting_since

    def rerotate(self, request: Request, to_index: int, moves: Moves, ahead: Sequence[int]) -> None:
        """Begin to re-rotate a request's cached keys. Requests of other histories do not find the blocks it fills.

        Args:
            ahead: blocks behind these keys, which the request holds for drafted tokens.
        """
        self._leave_tiers(request)
        name = self.coordinator.rerotate(
            request.request_id, to_index, moves, num_tokens=request.num_computed_tokens, ahead=ahead
        )
        if self.coordinator.is_private(request.request_id):
            self._leave_others(request, name)
        else:
            self._take_names(request, self.coordinator.first_index(request.request_id), to_index)

    def histories(self, request: Request) -> Iterator[tuple[History, Sequence[bytes]]]:
        """What a waiting request may go on from, and the hashes under which the prefix cache would know its blocks."""
        for found in self.coordinator.histories(request.request_id, request.num_tokens):
            yield found, self._names(request, found.first_index, found.scale_index)[1]

    def begin(self, request: Request) -> None:
        """Let a waiting request look up its prefix at its first scale, whatever it was to go on from before."""
        if request.request_id in self._first_hashes:
            first_index = self.coordinator.begin(request.request_id)
            self._take_names(request, first_index, first_index)

    def go_on_from(self, request: Request, found: History, *, num_tokens: int) -> None:
        """Let a waiting request go on from what requests of a history have cached."""
        self._leave_tiers(request)
        self.coordinator.go_on_from(request.request_id, found, num_tokens=num_tokens)
        self._take_names(request, found.first_index, found.scale_index)

    def hashes_at_other_scales(self, request: Request) -> dict[int, Sequence[bytes]]:
        """By index of the other scales: the hashes under which the prefix cache would know a request's blocks."""
        salts = {
            index: self._salt(request, regime(self.deployment, index)) for index in range(len(self.deployment.scales))
        }
        return {
            index: SaltedHashes(request, self.hash_block_size, salt)
            for index, salt in salts.items()
            if salt != request.cache_salt and not self._has_axes(request)
        }

    def reuse(self, request: Request, from_index: int, moves: Moves, *, num_tokens: int) -> None:
        """Begin to copy a prefix cached at another scale. Other requests do not find the blocks it fills."""
        regime_name = self.coordinator.reuse(request.request_id, from_index, moves, num_tokens=num_tokens)
        self._leave_others(request, regime_name)

    def recompute(self, request: Request, to_index: int) -> None:
        """Let a request begin again at another scale; the caller gives its blocks back."""
        self._leave_tiers(request)
        self.coordinator.generated(request.request_id, request.num_output_tokens)
        regime_name = self.coordinator.recompute(request.request_id, to_index, num_tokens=request.num_computed_tokens)
        self._first_hashes.pop(request.request_id, None)
        request.cache_salt = self._salt(request, regime_name)
        request.block_hashes = SaltedHashes(request, self.hash_block_size, request.cache_salt)

    def longest_prefix(self, request: Request) -> int:
        """The most tokens, of whole blocks, that a waiting request may find or load: one is left to be computed."""
        most: int = min(request.num_tokens, self.coordinator.length_of_scale(request.request_id)) - 1
        return most - most % math.lcm(*self._block_sizes)

    def may_take_keys(self, request: Request) -> bool:
        """Whether keys that another engine has prefilled have the scale at which a request begins."""
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        first = self.deployment.scales[self.coordinator.first_index(request.request_id)]
        return bool(extra.get(PREFILLED_SCALE) == first)

    def loads(self, request: Request, block_ids: Sequence[Sequence[int]], begin: int, end: int) -> None:
        """A tier fills the blocks of tokens ``begin`` to ``end``, with keys of the request's scale."""
        for group in self.scaled_groups:
            size = self._block_sizes[group]
            self.coordinator.allocated(request.request_id, block_ids[group][begin // size : -(-end // size)])

    def preempted(self, request: Request) -> list[int]:
        """Note that a request loses its blocks. It may find in the prefix cache what it had at its first scale.

        Returns:
            Ids of the blocks that it had still to copy; the caller gives them back.
        """
        _, sources = self.coordinator.preempted(request.request_id)
        if request.request_id in self._first_hashes:
            first_index = self.coordinator.first_index(request.request_id)
            self._take_names(request, first_index, first_index)
        return sources

    def abandoned(self, request: Request) -> list[int]:
        """Note that a request is about to be freed.

        Returns:
            Ids of the blocks that it had still to copy; the caller gives them back.
        """
        self._waiting_since.pop(request.request_id, None)
        self._prefills.ended(request.request_id)
        return self.coordinator.abandoned(request.request_id)

    def build_metadata(self, scheduler_output: SchedulerOutput) -> PosencMetadata:
        """Make the step's plan. Preempted requests come first: the same step may have given their blocks to others.

        Of the running requests, only those that get blocks or may have to cross are looked at.
        """
        coordinator = self.coordinator
        for request_id in scheduler_output.preempted_req_ids or ():
            # A request that a reset of the prefix cache preempted may have been cancelled since. No blocks are given
            # back here: PosencScheduler did so when it preempted, and with vLLM's own scheduler no request copies.
            if request_id in self._client_salts:
                coordinator.preempted(request_id)
                self._prefills.preempted(request_id)
        num_scheduled = scheduler_output.num_scheduled_tokens
        self._end_waits(num_scheduled)
        tables = []
        for new in scheduler_output.scheduled_new_reqs:
            coordinator.scheduled(new.req_id, new.num_computed_tokens, num_scheduled[new.req_id])
            coordinator.prefilling(new.req_id, num_hit_tokens=new.num_computed_tokens)
            coordinator.look_again(new.req_id)
            tables.append((new.req_id, new.block_ids, new.num_computed_tokens))
        cached = scheduler_output.scheduled_cached_reqs
        checked = num_scheduled.keys() & coordinator.to_be_checked()
        for index, block_ids in enumerate(cached.new_block_ids):
            if block_ids is None and not (checked and cached.req_ids[index] in checked):
                continue
            request_id, num_computed_tokens = cached.req_ids[index], cached.num_computed_tokens[index]
            coordinator.scheduled(request_id, num_computed_tokens, num_scheduled[request_id])
            if block_ids is None:
                continue
            # vLLM counts the drafted tokens of a step under way as if none of them would be rejected.
            coordinator.generated(request_id, cached.num_output_tokens[index] - self._num_drafted)
            resumed = request_id in cached.resumed_req_ids
            if resumed:
                coordinator.look_again(request_id)
            tables.append((request_id, block_ids, num_computed_tokens if resumed else 0))
        if self._prefills:
            news = ((new.req_id, new.num_computed_tokens) for new in scheduler_output.scheduled_new_reqs)
            going_on = zip(cached.req_ids, cached.num_computed_tokens, strict=True)
            self._prefills.scheduled((name, done + num_scheduled[name]) for name, done in chain(news, going_on))
        # Allocations before hits: a request may hit a block that another one gets, and fills, in this very step.
        for request_id, block_ids, num_hit_tokens in tables:
            for group in self.scaled_groups:
                ids, first = block_ids[group], num_hit_tokens // self._block_sizes[group]
                coordinator.allocated(request_id, ids[first:] if first else ids)
        for request_id, block_ids, num_hit_tokens in tables:
            if num_hit_tokens:
                for group in self.scaled_groups:
                    coordinator.hit(request_id, block_ids[group][: num_hit_tokens // self._block_sizes[group]])
        return PosencMetadata(coordinator.take_plan())

    def said_so_far(self, request: Request) -> dict[str, Any]:
        """What the response would say if a request ended now."""
        return {"posenc": self.coordinator.said_so_far(request.request_id)}

    def request_finished(self, request: Request) -> dict[str, Any]:
        """What the response says about a request that ended."""
        del self._client_salts[request.request_id]
        self._arrived.pop(request.request_id, None)
        self._first_hashes.pop(request.request_id, None)
        self.ended_by_text.discard(request.request_id)
        self._prefills.ended(request.request_id)
        return {"posenc": self.coordinator.finished(request.request_id, num_output_tokens=request.num_output_tokens)}

    def take_report(self) -> dict[str, Any]:
        report, self._budget_report = self.coordinator.take_report() | self._budget_report, {}
        if self._wait_seconds:
            report["crossing_wait_seconds"], self._wait_seconds = self._wait_seconds, []
        if prefill_tokens := self._prefills.take_report():
            report["prefill_tokens"] = prefill_tokens
        return report

    def _admit(self, request: Request | EngineCoreRequest, num_prompt_tokens: int, max_tokens: int | None) -> Admission:
        """Choose a request's first scale, by what it asks for.

        Raises:
            ValueError: as ``admit``.
        """
        if request.resumable:
            # The prompt of a streaming-input session goes on growing after this: it may reach any length.
            return admit(
                self.deployment,
                num_prompt_tokens=num_prompt_tokens,
                max_tokens=self.deployment.max_model_len,
                on_crossing="pin",
            )
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        if (together := extra.get(ADMISSION_TOKENS)) is not None:
            return admit(
                self.deployment,
                num_prompt_tokens=num_prompt_tokens,
                max_tokens=max(together - num_prompt_tokens, 0),
                on_crossing="pin",
            )
        asked = extra.get(ON_CROSSING)
        try:
            choose_on_crossing(self.deployment, asked)
        except ValueError as error:
            # The API server refuses a choice that the deployment does not offer. ``LLM`` does not, so we warn.
            logger.warning(
                "request %s: %s; the request gets the deployment's on_crossing instead", request.request_id, error
            )
            asked = None
        if self._has_axes(request) and choose_on_crossing(self.deployment, asked) == "rerotate":
            asked = "recompute"
        if extra.get(PROMPT_ALONE) and max_tokens == 1:  # vLLM makes 1 of 0; that token is never cached
            max_tokens = 0
        admitted = functools.partial(
            admit, self.deployment, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens, on_crossing=asked
        )
        if (prefilled_scale := extra.get(PREFILLED_SCALE)) is not None:
            # The API server has checked this. ``LLM`` is believed, and a scale that cannot be is ignored.
            with contextlib.suppress(ValueError):
                return admitted(prefilled_scale=prefilled_scale)
        return admitted()

    def _has_axes(self, request: Request | EngineCoreRequest) -> bool:
        return self._images_have_axes and bool(request.mm_features)

    def _end_waits(self, num_scheduled: Mapping[str, int]) -> None:
        if not self._waiting_since:
            return
        now = time.perf_counter()
        for request_id in self._waiting_since.keys() & num_scheduled.keys():
            self._wait_seconds.append(now - self._waiting_since.pop(request_id))

    def _salt(self, request: Request, regime_name: str | None) -> str | None:
        return salted(self._client_salts[request.request_id], regime_name)

    def _leave_others(self, request: Request, regime_name: str) -> None:
        """Give a request private hashes, so that nobody finds its new blocks. Keep the old ones for a preemption."""
        first_index = self.coordinator.first_index(request.request_id)
        self._names(request, first_index, first_index)
        request.cache_salt = self._salt(request, regime_name)
        request.block_hashes = PrivateHashes(request, self.hash_block_size)

    def _leave_tiers(self, request: Request) -> None:
        if self.tiers:
            self.tiers.leave(request)

    def _take_names(self, request: Request, first_index: int, scale_index: int) -> None:
        """Let a request find and cache blocks under the names of its history."""
        request.cache_salt, request.block_hashes = self._names(request, first_index, scale_index)

    def _names(self, request: Request, first_index: int, scale_index: int) -> tuple[str | None, Any]:
        """Salt and hashes of requests with this one's tokens and client that have this history."""
        known = self._first_hashes.get(request.request_id)
        if known is None:  # the request is still as it was admitted
            own = self.coordinator.first_index(request.request_id)
            hashes = SaltedHashes(request, self.hash_block_size, request.cache_salt, request.block_hashes)
            known = self._first_hashes[request.request_id] = {own: (request.cache_salt, hashes)}
        if first_index not in known:
            salt = self._salt(request, regime(self.deployment, first_index))
            known[first_index] = salt, SaltedHashes(request, self.hash_block_size, salt)
        if first_index == scale_index:
            return known[first_index]
        name = str(history(self.deployment, first_index, scale_index))
        return (
            self._salt(request, name),
            CrossedHashes(request, self.hash_block_size, known[first_index][1], name),
        )

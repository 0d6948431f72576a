"""The connector's half in the scheduler: vLLM's requests and blocks, translated for ``kv.coordinator``."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from posenc_runtime.kv.admission import choose_on_crossing
from posenc_runtime.kv.budget import Budget, given
from posenc_runtime.kv.coordinator import ScaleCoordinator, StepPlan
from posenc_runtime.kv.counts import TOTAL
from posenc_runtime.kv.crossing import BlockMove
from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.kv.regime import regime, salted
from posenc_runtime.vllm_adapter.channel import ON_CROSSING

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
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
    """

    def __init__(self, deployment: Deployment, block_sizes: Sequence[int]) -> None:
        self.deployment = deployment
        self._coordinator = ScaleCoordinator(deployment)
        self._block_sizes = block_sizes
        self._client_salts: dict[str, str | None] = {}
        self._waiting_since: dict[str, float] = {}  # requests that have to cross, until they run again
        self._wait_seconds: list[float] = []
        self._budget_report: dict[str, Any] = {}
        if deployment.rerotates and deployment.rerotate_budget_tokens is not None:
            self.set_budget(given(deployment.rerotate_budget_tokens))
        self.reusable: dict[str, int] = {}  # tokens of cached prefixes at other scales that requests may have copied

    def set_budget(self, budget: Budget) -> None:
        """Say, once, how many cached tokens are re-rotated before a step."""
        logger.info("%d cached tokens are re-rotated before a step: %s", budget.tokens, budget.reason)
        self._coordinator.budget_tokens = budget.tokens
        self._budget_report = {"rerotate_budget_tokens": {TOTAL: budget.tokens}}

    def on_new_request(self, request: Request) -> None:
        """Choose the scale and put its regime into the salt, before anybody looks the prefix up."""
        # The prompt of a streaming-input session goes on growing after this: it may reach any length.
        max_tokens = self.deployment.max_model_len if request.resumable else request.max_tokens
        self._client_salts[request.request_id] = request.cache_salt
        regime_name = self._coordinator.admit(
            request.request_id,
            num_prompt_tokens=request.num_prompt_tokens,
            max_tokens=max_tokens,
            on_crossing="pin" if request.resumable else self._asked_on_crossing(request),
        )
        self._enter(request, regime_name)

    def due(self, request: Request) -> int | None:
        """Index of the scale that a request must cross to before its next token, None when it may go on."""
        to_index = self._coordinator.due(request.request_id, request.num_computed_tokens)
        if to_index is not None:
            self._waiting_since.setdefault(request.request_id, time.perf_counter())
        return to_index

    def has_to_cross(self, request: Request) -> bool:
        """Whether a request was to cross and has not run since."""
        return request.request_id in self._waiting_since

    def on_crossing(self, request: Request) -> OnCrossing:
        return self._coordinator.on_crossing(request.request_id)

    def in_first_regime(self, request: Request) -> bool:
        return self._coordinator.in_first_regime(request.request_id)

    def first_length(self, request: Request) -> int:
        return self._coordinator.first_length(request.request_id)

    def allowance(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        return self._coordinator.allowance(request.request_id, num_computed_tokens, num_new_tokens)

    def rerotate(self, request: Request, to_index: int, moves: Sequence[BlockMove]) -> None:
        """Begin to turn a request's cached keys, and take what it computes from now on out of others' reach."""
        regime_name = self._coordinator.rerotate(
            request.request_id, to_index, moves, num_tokens=request.num_computed_tokens
        )
        self._enter(request, regime_name)

    def hashes_at_other_scales(self, request: Request) -> dict[int, list[Any]]:
        """By scale, under which hashes the prefix cache would know a request's blocks."""
        own_salt, own_hashes = request.cache_salt, request.block_hashes
        found = {}
        for index in range(len(self.deployment.scales)):
            salt = salted(self._client_salts[request.request_id], regime(self.deployment, index))
            if salt != own_salt:
                request.cache_salt, request.block_hashes = salt, []
                request.update_block_hashes()
                found[index] = request.block_hashes
        request.cache_salt, request.block_hashes = own_salt, own_hashes
        return found

    def reuse(self, request: Request, from_index: int, moves: Sequence[BlockMove], *, num_tokens: int) -> None:
        """Begin to copy a prefix of another scale, and take what the request computes out of others' reach."""
        regime_name = self._coordinator.reuse(request.request_id, from_index, moves, num_tokens=num_tokens)
        self._enter(request, regime_name)

    def recompute(self, request: Request, to_index: int) -> None:
        """Let a request begin again at another scale; its blocks are the caller's to give back."""
        self._coordinator.generated(request.request_id, request.num_output_tokens)
        regime_name = self._coordinator.recompute(request.request_id, to_index, num_tokens=request.num_computed_tokens)
        self._enter(request, regime_name)

    def advance(self) -> tuple[list[int], set[str]]:
        """Plan the next step's share of the moves.

        Returns:
            Blocks to give back once the step is planned, and requests whose reused prefix is complete.
        """
        sources, completed = self._coordinator.advance()
        return sources, set(completed) - self._waiting_since.keys()

    def preempted(self, request: Request) -> list[int]:
        """A request loses its blocks: it may find in the prefix cache what it computed at its first scale.

        Returns:
            Blocks to give back that it was still to copy.
        """
        regime_name, sources = self._coordinator.preempted(request.request_id)
        self._enter(request, regime_name)
        return sources

    def abandoned(self, request: Request) -> list[int]:
        """A request is about to be freed. Returns blocks to give back that it was still to copy."""
        self._waiting_since.pop(request.request_id, None)
        return self._coordinator.abandoned(request.request_id)

    def build_metadata(self, scheduler_output: SchedulerOutput) -> PosencMetadata:
        """The step's plan. Blocks given back come first: the same step may have handed them to somebody else."""
        for request_id in scheduler_output.preempted_req_ids or ():
            # One that was preempted by a reset of the prefix cache may have been cancelled since.
            if request_id in self._client_salts:
                self._coordinator.preempted(request_id)
        num_scheduled = scheduler_output.num_scheduled_tokens
        now = time.perf_counter()
        for request_id in self._waiting_since.keys() & num_scheduled.keys():
            self._wait_seconds.append(now - self._waiting_since.pop(request_id))
        tables = []
        for new in scheduler_output.scheduled_new_reqs:
            self._coordinator.scheduled(new.req_id, new.num_computed_tokens, num_scheduled[new.req_id])
            self._coordinator.prefilling(new.req_id, num_hit_tokens=new.num_computed_tokens)
            tables.append((new.req_id, new.block_ids, new.num_computed_tokens))
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, block_ids, num_computed_tokens, num_output_tokens in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            self._coordinator.scheduled(request_id, num_computed_tokens, num_scheduled[request_id])
            self._coordinator.generated(request_id, num_output_tokens)
            if block_ids is not None:
                resumed = request_id in cached.resumed_req_ids
                tables.append((request_id, block_ids, num_computed_tokens if resumed else 0))
        # A request may hit a block that another one is given in this very step, to fill before the first one reads.
        for request_id, block_ids, num_hit_tokens in tables:
            for ids, block_size in zip(block_ids, self._block_sizes, strict=True):
                self._coordinator.allocated(request_id, ids[num_hit_tokens // block_size :])
        for request_id, block_ids, num_hit_tokens in tables:
            for ids, block_size in zip(block_ids, self._block_sizes, strict=True):
                self._coordinator.hit(request_id, ids[: num_hit_tokens // block_size])
        return PosencMetadata(self._coordinator.take_plan())

    def said_so_far(self, request: Request) -> dict[str, Any]:
        """What the response would say if a request ended now."""
        return {"posenc": self._coordinator.said_so_far(request.request_id)}

    def request_finished(self, request: Request) -> dict[str, Any]:
        """What the response says about a request that ended."""
        del self._client_salts[request.request_id]
        return {"posenc": self._coordinator.finished(request.request_id, num_output_tokens=request.num_output_tokens)}

    def take_report(self) -> dict[str, Any]:
        report, self._budget_report = self._coordinator.take_report() | self._budget_report, {}
        if self._wait_seconds:
            report["crossing_wait_seconds"], self._wait_seconds = self._wait_seconds, []
        return report

    def _asked_on_crossing(self, request: Request) -> str | None:
        """What a request asked for. Our server has refused what is not to be had; plain vLLM cannot, so we say it."""
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        asked = extra.get(ON_CROSSING)
        try:
            choose_on_crossing(self.deployment, asked)
        except ValueError as error:
            logger.warning("request %s: %s; it gets the deployment's own", request.request_id, error)
            return None
        return asked

    def _enter(self, request: Request, regime_name: str | None) -> None:
        """Put a regime into a request's salt, and so into the hashes of its blocks."""
        salt = salted(self._client_salts[request.request_id], regime_name)
        if salt != request.cache_salt:
            request.cache_salt = salt
            request.block_hashes.clear()
            request.update_block_hashes()

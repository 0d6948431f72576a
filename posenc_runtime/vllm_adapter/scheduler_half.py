"""The connector's half in the scheduler: vLLM's requests and blocks, translated for ``kv.coordinator``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from posenc_runtime.kv.coordinator import ScaleCoordinator, StepPlan
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.regime import salted

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


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
        self._deployment = deployment
        self._coordinator = ScaleCoordinator(deployment)
        self._block_sizes = block_sizes

    def on_new_request(self, request: Request) -> None:
        """Choose the scale and put its regime into the salt, before anybody looks the prefix up."""
        # The prompt of a streaming-input session goes on growing after this: it may reach any length.
        max_tokens = self._deployment.max_model_len if request.resumable else request.max_tokens
        regime_name = self._coordinator.admit(
            request.request_id, num_prompt_tokens=request.num_prompt_tokens, max_tokens=max_tokens
        )
        salt = salted(request.cache_salt, regime_name)
        if salt != request.cache_salt:
            request.cache_salt = salt
            request.block_hashes.clear()
            request.update_block_hashes()

    def build_metadata(self, scheduler_output: SchedulerOutput) -> PosencMetadata:
        """The step's plan. Blocks given back come first: the same step may have handed them to somebody else."""
        for request_id in scheduler_output.preempted_req_ids or ():
            self._coordinator.preempted(request_id)
        tables = []
        for new in scheduler_output.scheduled_new_reqs:
            self._coordinator.prefilling(new.req_id, num_hit_tokens=new.num_computed_tokens)
            tables.append((new.req_id, new.block_ids, new.num_computed_tokens))
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, block_ids, num_computed_tokens, num_output_tokens in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
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

    def request_finished(self, request: Request) -> dict[str, Any]:
        """What the response says about a request that ended."""
        return {"posenc": self._coordinator.finished(request.request_id, num_output_tokens=request.num_output_tokens)}

    def take_report(self) -> dict[str, Any]:
        return self._coordinator.take_report()

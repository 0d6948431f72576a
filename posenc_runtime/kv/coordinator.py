"""The scheduler's half: from requests and blocks to the plan of a step. Knows no engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from posenc_runtime.kv.admission import Admission, admit
from posenc_runtime.kv.counts import Counts
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.ledger import BlockLedger
from posenc_runtime.kv.regime import regime


@dataclasses.dataclass(kw_only=True)
class StepPlan:
    """What the workers must do before a forward.

    Attributes:
        block_scales: scale index to the physical blocks that are to carry it from this step on.
    """

    block_scales: dict[int, list[int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True)
class _Running:
    admission: Admission
    num_prompt_tokens: int
    num_output_tokens: int = 0
    prefill_counted: bool = False


class ScaleCoordinator:
    """Decides scales and keeps the books: one object per engine, driven by its scheduler."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._scale_set = deployment.scale_set
        self._requests: dict[str, _Running] = {}
        self._ledger = BlockLedger()
        self._counts = Counts()
        self._plan = StepPlan()
        self._levels: dict[str, int] = {}

    def admit(self, request_id: str, *, num_prompt_tokens: int, max_tokens: int | None) -> str | None:
        """Choose a request's scale. Returns the regime whose cached keys it may read, None for the unscaled one.

        Raises:
            ValueError: when the prompt alone exceeds ``max_model_len``.
        """
        admission = admit(self.deployment, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens)
        self._requests[request_id] = _Running(admission=admission, num_prompt_tokens=num_prompt_tokens)
        self._counts.requests[self._label(admission)] += 1
        return regime(self.deployment, admission.scale_index)

    def allocated(self, request_id: str, block_ids: Sequence[int]) -> None:
        """A request got fresh blocks, which it will fill."""
        scale_index = self._requests[request_id].admission.scale_index
        self._ledger.write(request_id, block_ids, scale_index)
        if block_ids:
            self._plan.block_scales.setdefault(scale_index, []).extend(block_ids)

    def hit(self, request_id: str, block_ids: Sequence[int]) -> None:
        """A request got blocks from the prefix cache. Those of a step come after all that was allocated in it.

        Raises:
            MixedRotations: when a block carries another scale than the request's.
        """
        self._ledger.read(request_id, block_ids, self._requests[request_id].admission.scale_index)

    def prefilling(self, request_id: str, *, num_hit_tokens: int) -> None:
        """A request was scheduled for the first time, with so many tokens from the prefix cache."""
        running = self._requests[request_id]
        if running.prefill_counted:
            return
        running.prefill_counted = True
        self._counts.prompt_tokens[self._label(running.admission)] += running.num_prompt_tokens
        if num_hit_tokens:
            self._counts.prefix_hit_tokens[self._label(running.admission)] += num_hit_tokens

    def generated(self, request_id: str, num_output_tokens: int) -> None:
        """A request has so many output tokens by now."""
        running = self._requests[request_id]
        if num_output_tokens > running.num_output_tokens:
            self._counts.generation_tokens[self._label(running.admission)] += (
                num_output_tokens - running.num_output_tokens
            )
            running.num_output_tokens = num_output_tokens

    def preempted(self, request_id: str) -> None:
        """A request lost its blocks and will be prefilled again, at the same scale."""
        self._ledger.release(request_id)

    def finished(self, request_id: str, *, num_output_tokens: int) -> dict[str, Any]:
        """A request ended, for whatever reason. Returns what its response says about it."""
        self.generated(request_id, num_output_tokens)
        self._ledger.release(request_id)
        admission = self._requests.pop(request_id).admission
        return {
            "rope_type": self.deployment.rope_type,
            "scale": self.deployment.scales[admission.scale_index],
            "admission_tokens": admission.admission_tokens,
            "crossings": [],
        }

    def take_plan(self) -> StepPlan:
        """The plan of the step that is being scheduled."""
        plan, self._plan = self._plan, StepPlan()
        return plan

    def take_report(self) -> dict[str, Any]:
        """What happened since the last call, in the form of ``counts.merged``; empty when nothing did."""
        report: dict[str, Any] = self._counts.take()
        levels = {
            self._scale_set.label(index): self._ledger.num_held(index) for index in range(len(self.deployment.scales))
        }
        if levels != self._levels:
            self._levels = levels
            report["kv_blocks"] = levels
        return report

    def _label(self, admission: Admission) -> str:
        return self._scale_set.label(admission.scale_index)

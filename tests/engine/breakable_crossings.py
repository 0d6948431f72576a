"""A server whose crossings can be broken while it runs: while a file exists, blocks keep the old scale at a crossing.

vLLM imports this module in its worker, because a deployment names its class in ``logits_processors``.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib

from posenc_runtime.kv.step_plan import StepPlan
from posenc_runtime.vllm_adapter.forced_tokens import ForcedTokens
from posenc_runtime.vllm_adapter.in_worker.worker_half import WorkerHalf

FILE = "BREAKS_CROSSINGS"  # of the environment: the file's path
LOADED = f"{__name__}:{ForcedTokens.__name__}"

_apply = WorkerHalf.apply


def _breakable(self: WorkerHalf, plan: StepPlan) -> None:
    if plan.rotations and pathlib.Path(os.environ[FILE]).exists():
        # Writing nothing would not do: a block can hold the new scale from an earlier request.
        blocks = [block_id for ids in plan.block_scales.values() for block_id in ids]
        plan = dataclasses.replace(plan, block_scales={plan.rotations[0].from_index: blocks})
    _apply(self, plan)


if FILE in os.environ:
    WorkerHalf.apply = _breakable  # type: ignore[method-assign]

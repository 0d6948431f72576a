"""Whether an engine needs our scheduler.

vLLM's own is enough where no request changes its scale, and none is preempted out of the step being scheduled.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posenc_runtime.kv.deployment import Deployment


@dataclasses.dataclass(frozen=True)
class NeedsOurs:
    """Why an engine needs our scheduler.

    Attributes:
        where: the settings that need it.
        otherwise: what goes wrong with vLLM's own scheduler, and what to set.
    """

    where: str
    otherwise: str


def needs_ours(deployment: Deployment, policy: str) -> NeedsOurs | None:
    """Why a deployment needs our scheduler; None where vLLM's own serves it correctly.

    Args:
        policy: vLLM's ``scheduling_policy``.
    """
    if deployment.changes_scales:
        return NeedsOurs(
            f"on_crossing is {deployment.on_crossing} and prefix_reuse is {deployment.prefix_reuse}",
            "with another scheduler no request crosses. Leave scheduler_cls out, or set on_crossing to pin and "
            "prefix_reuse to exact",
        )
    if policy == "priority" and not deployment.turns_queries:
        return NeedsOurs(
            "scheduling_policy is priority",
            "with another scheduler, blocks that were never computed stay in the prefix cache, and end the engine. "
            "Leave scheduler_cls out, or set scheduling_policy to fcfs",
        )
    return None

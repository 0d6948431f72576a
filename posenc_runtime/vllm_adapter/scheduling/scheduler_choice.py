"""Whose scheduler an engine has: vLLM's own is enough where nobody crosses, and nobody is preempted out of a step."""

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
        otherwise: what vLLM's own would do, and what to set for it.
    """

    where: str
    otherwise: str


def needs_ours(deployment: Deployment, policy: str) -> NeedsOurs | None:
    """None where vLLM's own scheduler serves a deployment right.

    Args:
        policy: vLLM's ``scheduling_policy``.
    """
    if deployment.changes_scales:
        return NeedsOurs(
            f"on_crossing is {deployment.on_crossing} and prefix_reuse {deployment.prefix_reuse}",
            "no request ever crosses (or set on_crossing to pin and prefix_reuse to exact)",
        )
    if policy == "priority":
        return NeedsOurs(
            "scheduling_policy is priority",
            "blocks that were never computed stay in the prefix cache, and end the engine (or set scheduling_policy to "
            "fcfs)",
        )
    return None

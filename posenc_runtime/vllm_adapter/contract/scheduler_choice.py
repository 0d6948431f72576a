"""Whether an engine needs our scheduler.

vLLM's own is enough where no request changes its scale, none is preempted out of the step being scheduled, and no
drafted token can lie behind the last position of a scale.
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


def needs_ours(deployment: Deployment, policy: str, *, drafts: bool) -> NeedsOurs | None:
    """Why a deployment needs our scheduler; None where vLLM's own serves it correctly.

    Args:
        policy: vLLM's ``scheduling_policy``.
        drafts: whether there is a ``speculative_config``.
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
    if drafts and deployment.scales_keys and len(deployment.scales) > 1:
        return NeedsOurs(
            "speculative_config is given and there are several scales",
            "with another scheduler, tokens drafted for the end of a request exceed the length of its scale, and end "
            "the engine. Leave scheduler_cls out",
        )
    return None

"""What is remembered of a request while it is there, and what its response says of it."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from posenc_runtime.kv.admission import Admission
from posenc_runtime.kv.deployment import Deployment


class ReusedPrefix(NamedTuple):
    """Copies that a request begins with, of keys that others computed at another scale."""

    num_tokens: int
    from_index: int
    to_index: int


@dataclasses.dataclass(kw_only=True, slots=True)
class Running:
    """A request.

    Attributes:
        admission: what was decided when it came, and is not changed by anything since.
        first_index: scale of its first token. A preempted request begins again there; a recomputed one at another.
        scale_index: scale that its blocks carry now.
        num_output_tokens: of its answer, those that are counted.
        num_reused_tokens: tokens of its prompt whose keys are copies from another scale. Behind those, if any, that the
            prefix cache had at its own.
        crossings: what its response says, each crossing once, however often it is replayed.
        reused: the copies of a prefix of another scale that it begins with, once all of them are made.
    """

    admission: Admission
    num_prompt_tokens: int
    first_index: int
    scale_index: int
    num_output_tokens: int = 0
    num_reused_tokens: int = 0
    prefill_counted: bool = False
    crossings: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    reused: ReusedPrefix | None = None

    def said_so_far(self, deployment: Deployment) -> dict[str, Any]:
        """What its response says, or would say if it ended now."""
        scales = deployment.scales
        response = {
            "rope_type": deployment.rope_type,
            # A request that was preempted and never resumed had come further than its blocks say.
            "scale": self.crossings[-1]["to"] if self.crossings else scales[self.first_index],
            "admission_tokens": self.admission.admission_tokens,
            "crossings": list(self.crossings),  # as of now: it may be sent after the next one
        }
        if (reused := self.reused) and self.prefill_counted:  # else nothing of its answer has read them
            response["prefixes_reused"] = [
                {"tokens": reused.num_tokens, "from": scales[reused.from_index], "to": scales[reused.to_index]}
            ]
        return response

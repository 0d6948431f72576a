"""What the coordinator remembers of a request until it ends, and what the request's response says about it."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from posenc_runtime.kv.admission import Admission
from posenc_runtime.kv.deployment import Deployment


class ReusedPrefix(NamedTuple):
    """The copied prefix that a request begins with; other requests computed the keys at another scale."""

    num_tokens: int
    from_index: int
    to_index: int


class Continued(NamedTuple):
    """The cached beginning that a request goes on from; requests of the same history computed the keys."""

    num_tokens: int
    first_index: int
    scale_index: int


@dataclasses.dataclass(kw_only=True, slots=True)
class Running:
    """A request.

    Attributes:
        admission: what was decided when the request came; it never changes.
        first_index: scale of the first token. A preempted request begins again at this scale; ``recompute`` sets
            another, and so does a cached beginning that the request goes on from.
        scale_index: scale that the request's blocks carry now.
        num_output_tokens: output tokens that are counted already.
        num_reused_tokens: prompt tokens whose keys are copies from another scale. They follow the tokens, if any, that
            the prefix cache had at the request's own scale.
        crossings: the crossings that the response lists. One that is replayed is listed once.
        reused: the copied prefix of another scale, None until all copies are made.
        continued: the cached beginning of another history than the one it was admitted to.
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
    continued: Continued | None = None

    def said_so_far(self, deployment: Deployment) -> dict[str, Any]:
        """What the request's response says, or would say if the request ended now."""
        scales = deployment.scales
        response = {
            "rope_type": deployment.rope_type,
            # Not `scale_index`: preemption sets that back, and a request may end before it has crossed again.
            "scale": self.crossings[-1]["to"] if self.crossings else scales[self._began_at],
            "admission_tokens": self.admission.admission_tokens,
            "crossings": list(self.crossings),  # a copy: the next crossing may come before this is sent
        }
        if (reused := self.reused) and self.prefill_counted:  # before its prefill no token has read the copies
            response["prefixes_reused"] = [
                {"tokens": reused.num_tokens, "from": scales[reused.from_index], "to": scales[reused.to_index]}
            ]
        if (continued := self.continued) and self.prefill_counted:
            response["continued"] = {
                "tokens": continued.num_tokens,
                "first_scale": scales[continued.first_index],
                "scale": scales[continued.scale_index],
            }
        return response

    @property
    def _began_at(self) -> int:
        """The scale at which the first token was computed that the request computed itself."""
        return self.continued.scale_index if self.continued else self.first_index

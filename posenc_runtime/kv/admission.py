"""At which scale does a request start? Decided once, before its first chunk of prefill."""

from __future__ import annotations

import dataclasses

from posenc_runtime.kv.deployment import Deployment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Admission:
    """A request's first scale and the length that decided it.

    Attributes:
        scale_index: index into the deployment's scales.
        admission_tokens: prompt tokens plus the new tokens the request is admitted for.
    """

    scale_index: int
    admission_tokens: int


def admit(deployment: Deployment, *, num_prompt_tokens: int, max_tokens: int | None) -> Admission:
    """Choose the first scale of a request.

    With ``pin`` a request is admitted at the largest length that it may reach, so it never outgrows its scale.
    A ``max_tokens`` of None is a request that did not say: it is admitted for ``headroom_tokens``.

    Raises:
        ValueError: when the prompt alone exceeds ``max_model_len``.
    """
    new_tokens = deployment.headroom_tokens if max_tokens is None else max_tokens
    if num_prompt_tokens > deployment.max_model_len:
        raise ValueError(f"a prompt may have at most {deployment.max_model_len} tokens, got {num_prompt_tokens}")
    # An engine stops a request at max_model_len, whatever it asked for.
    admission_tokens = min(num_prompt_tokens + new_tokens, deployment.max_model_len)
    return Admission(scale_index=deployment.scale_set.for_length(admission_tokens), admission_tokens=admission_tokens)

"""Chooses the scale at which a request starts, once, before its first chunk of prefill."""

from __future__ import annotations

import dataclasses
from typing import cast, get_args

from posenc_runtime.kv.deployment import Deployment, OnCrossing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Admission:
    """A request's first scale and the length that decided it.

    Attributes:
        scale_index: index into the deployment's scales.
        admission_tokens: prompt tokens plus the new tokens the request is admitted for.
        on_crossing: what happens when the request outgrows that scale.
    """

    scale_index: int
    admission_tokens: int
    on_crossing: OnCrossing


def admit(
    deployment: Deployment,
    *,
    num_prompt_tokens: int,
    max_tokens: int | None,
    on_crossing: str | None = None,
) -> Admission:
    """Choose the first scale of a request.

    With ``pin`` a request is admitted at the largest length that it may reach, so it never outgrows its scale.
    Otherwise it is admitted for at most ``headroom_tokens`` new tokens, and crosses when it needs more.

    Args:
        max_tokens: the request's ``max_tokens``. Without it (None) the request is admitted for ``headroom_tokens``.
        on_crossing: the request's own choice, None for the deployment's.

    Raises:
        ValueError: when the prompt alone exceeds ``max_model_len``, or the deployment does not offer the choice.
    """
    chosen = choose_on_crossing(deployment, on_crossing)
    new_tokens = deployment.headroom_tokens if max_tokens is None else max_tokens
    if chosen != "pin":
        new_tokens = min(new_tokens, deployment.headroom_tokens)
    if num_prompt_tokens > deployment.max_model_len:
        raise ValueError(f"a prompt may have at most {deployment.max_model_len} tokens, got {num_prompt_tokens}")
    # An engine stops a request at max_model_len, whatever it asked for.
    admission_tokens = min(num_prompt_tokens + new_tokens, deployment.max_model_len)
    return Admission(
        scale_index=deployment.scale_set.for_length(admission_tokens),
        admission_tokens=admission_tokens,
        on_crossing=chosen,
    )


def choose_on_crossing(deployment: Deployment, asked: object) -> OnCrossing:
    """What happens when a request outgrows its scale: the request's own choice, or else the deployment's.

    Args:
        asked: what the request says, None if nothing.

    Raises:
        ValueError: when the choice is unknown, or the deployment does not offer it.
    """
    if asked is None:
        return deployment.on_crossing if deployment.crosses else "pin"
    if asked not in get_args(OnCrossing):
        raise ValueError(f"on_crossing must be one of {', '.join(get_args(OnCrossing))}, got {asked!r}")
    choice = cast(OnCrossing, asked)
    if not deployment.crosses and choice != "pin":
        raise ValueError(
            f"on_crossing must be pin, got {choice}: this deployment serves one scale only or pins every request, so "
            "no request can cross"
        )
    if deployment.on_crossing == "recompute" and choice == "rerotate":
        raise ValueError(
            "on_crossing must be recompute or pin, got rerotate: a request may choose rerotate only if the "
            "deployment's own on_crossing is rerotate, because only then start-up checks that cached keys can be turned"
        )
    return choice

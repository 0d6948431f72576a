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
    prefilled_scale: float | None = None,
) -> Admission:
    """Choose the first scale of a request.

    With ``pin`` a request is admitted at the largest length that it may reach, so it never outgrows its scale.
    Otherwise it is admitted for at most ``headroom_tokens`` new tokens, and crosses when it needs more.

    Args:
        max_tokens: the request's ``max_tokens``. Without it (None) the request is admitted for ``headroom_tokens``.
        on_crossing: the request's own choice, None for the deployment's.
        prefilled_scale: at which another engine has prefilled the prompt. The request begins there, whatever its
            length, because the keys are there.

    Raises:
        ValueError: when the prompt alone exceeds ``max_model_len``, the deployment does not offer the choice, or the
            request cannot begin at the scale of the keys that it brings.
    """
    chosen = choose_on_crossing(deployment, on_crossing)
    new_tokens = deployment.headroom_tokens if max_tokens is None else max_tokens
    if chosen != "pin":
        new_tokens = min(new_tokens, deployment.headroom_tokens)
    if num_prompt_tokens > deployment.max_model_len:
        raise ValueError(f"a prompt may have at most {deployment.max_model_len} tokens, got {num_prompt_tokens}")
    # An engine stops a request at max_model_len, whatever it asked for.
    admission_tokens = min(num_prompt_tokens + new_tokens, deployment.max_model_len)
    scale_index = deployment.scale_set.for_length(admission_tokens)
    if prefilled_scale is not None and prefilled_scale != deployment.scales[scale_index]:
        if chosen == "pin":
            raise ValueError(
                f"on_crossing must not be pin where another engine has prefilled the prompt at scale "
                f"{prefilled_scale:g}, because this request needs scale {deployment.scales[scale_index]:g} for its "
                "whole length: leave posenc_on_crossing out"
            )
        scale_index = _index_of_prefilled(deployment, prefilled_scale, num_prompt_tokens)
        admission_tokens = min(admission_tokens, deployment.scale_set.lengths[scale_index])
    return Admission(scale_index=scale_index, admission_tokens=admission_tokens, on_crossing=chosen)


def _index_of_prefilled(deployment: Deployment, scale: float, num_prompt_tokens: int) -> int:
    if scale not in deployment.scales:
        raise ValueError(
            f"the prompt must be prefilled at one of the scales {', '.join(f'{each:g}' for each in deployment.scales)} "
            f"of this deployment, got {scale:g}: give both servers the same scaling"
        )
    index = deployment.scales.index(scale)
    if deployment.scale_set.lengths[index] < num_prompt_tokens:
        raise ValueError(
            f"scale {scale:g}, at which the prompt was prefilled, must reach its {num_prompt_tokens} tokens, but it "
            f"ends at {deployment.scale_set.lengths[index]}: give both servers the same scaling"
        )
    return index


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

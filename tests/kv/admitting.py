"""Admits a request to a coordinator, as a scheduler does."""

from __future__ import annotations

from posenc_runtime.kv import admission
from posenc_runtime.kv.coordinator import ScaleCoordinator


def admit(
    coordinator: ScaleCoordinator,
    request_id: str,
    *,
    num_prompt_tokens: int,
    max_tokens: int,
    on_crossing: str | None = None,
) -> str | None:
    """The regime of a request with this prompt."""
    admitted = admission.admit(
        coordinator.deployment, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens, on_crossing=on_crossing
    )
    return coordinator.admitted(request_id, admitted, num_prompt_tokens=num_prompt_tokens)

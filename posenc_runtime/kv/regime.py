"""The regime of a request, which says what cached keys its queries may read. It travels in the prefix-cache salt."""

from __future__ import annotations

from posenc_runtime.kv.deployment import Deployment

_NUL = "\x00"


def regime(deployment: Deployment, scale_index: int) -> str | None:
    """Name of the rotation that keys carry at a scale, or None for the checkpoint's own.

    Queries of one regime never read keys of another. The unscaled regime has no name: the block hashes of unscaled
    requests are then those of stock vLLM, and routers and KV stores outside the engine still match them.
    """
    if deployment.scales[scale_index] == 1:
        return None
    return f"{deployment.rope_type}:{deployment.scales[scale_index]:g}:{deployment.fingerprint}"


def private(deployment: Deployment, scale_index: int, number: int) -> str:
    """Name of a regime of one request alone: after a crossing, or after it reused a prefix of another scale."""
    return f"{deployment.rope_type}:{deployment.scales[scale_index]:g}:{deployment.fingerprint}:private:{number}"


def salted(cache_salt: str | None, regime_name: str | None) -> str | None:
    """A request's prefix-cache salt in a regime: the client's own salt, if any, and the regime's name. Decision 21.

    A single NUL stands before the regime's name. Each NUL in the client's salt is doubled, so that no client can write
    the name of a regime.
    """
    escaped = cache_salt.replace(_NUL, 2 * _NUL) if cache_salt else cache_salt
    if regime_name is None:
        return escaped
    return f"{escaped or ''}{_NUL}posenc:{regime_name}"

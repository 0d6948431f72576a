"""Which cached keys may a query read? The regime, carried in the prefix-cache salt."""

from __future__ import annotations

from posenc_runtime.kv.deployment import Deployment

_NUL = "\x00"


def regime(deployment: Deployment, scale_index: int) -> str | None:
    """Name of the rotation that keys carry at a scale, or None for the checkpoint's own.

    Keys of one regime are never read by queries of another. The unscaled regime has no name, so that the block
    hashes of unscaled requests are those of stock vLLM and outside routers and stores go on matching them.
    """
    if deployment.scales[scale_index] == 1:
        return None
    return f"{deployment.rope_type}:{deployment.scales[scale_index]:g}:{deployment.fingerprint}"


def private(deployment: Deployment, scale_index: int, number: int) -> str:
    """Name of a regime that one request has for itself: after a crossing, or over a prefix of another scale."""
    return f"{deployment.rope_type}:{deployment.scales[scale_index]:g}:{deployment.fingerprint}:private:{number}"


def salted(cache_salt: str | None, regime_name: str | None) -> str | None:
    """A request's prefix-cache salt in a regime: the client's own, if any, and the regime's name. Decision 21.

    NUL marks the regime. A client's NULs are doubled, so runs of them are even and no client can name a regime.
    """
    escaped = cache_salt.replace(_NUL, 2 * _NUL) if cache_salt else cache_salt
    if regime_name is None:
        return escaped
    return f"{escaped or ''}{_NUL}posenc:{regime_name}"

"""The regime of a request, which says what cached keys its queries may read. It travels in the prefix-cache salt."""

from __future__ import annotations

import re

from posenc_runtime.kv.deployment import Deployment

# Stands before a regime's name. Printable, and without the characters that routers and LMCache give a meaning of their
# own: @ / and the backslash.
MARK = "~posenc:"
_MARKED = re.compile(r"~posenc(:+)")


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


def suffix(deployment: Deployment, scale_index: int) -> str:
    """What stands at the end of the salts of requests that begin at a scale; nothing for the checkpoint's own."""
    return salted(None, regime(deployment, scale_index)) or ""


def salted(cache_salt: str | None, regime_name: str | None) -> str | None:
    """A request's prefix-cache salt in a regime: the client's own salt, if any, and the regime's name. Decision 21.

    A router that has computed the whole salt may send it: it stays as it is. In any other salt of a client, a mark gets
    one more colon, so that no client can write the name of another regime.
    """
    end = "" if regime_name is None else MARK + regime_name
    own = (cache_salt or "").removesuffix(end)
    return (_MARKED.sub(r"~posenc\1:", own) + end) or None


def refuse_other_marks(deployment: Deployment, cache_salt: str) -> None:
    """Check a client's salt.

    Raises:
        ValueError: when it has a mark that is not that of one of the deployment's scales, at its end.
    """
    ends = [suffix(deployment, index) for index in range(1, len(deployment.scales))]
    end = next((each for each in ends if cache_salt.endswith(each)), "")
    if MARK in cache_salt.removesuffix(end):
        raise ValueError(
            f"cache_salt: must have {MARK!r} only at its end, followed by what /posenc/scales says of a scale, got "
            f"{cache_salt[:200]!r}: choose another salt"
        )

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


def history(deployment: Deployment, first_index: int, scale_index: int) -> str | None:
    """Name of what requests compute that began at one scale and have crossed to another by ``rerotate``.

    A token's position and the first scale decide the scale at which the token is computed (Decision 15). So requests
    with the same tokens and the same first scale have the same keys, and the name needs no number of a request.
    """
    name = regime(deployment, scale_index)
    return name if first_index == scale_index else f"{name}:from:{deployment.scales[first_index]:g}"


def private(deployment: Deployment, scale_index: int, number: int) -> str:
    """Name of a regime of one request alone, whose keys no other request may read."""
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


def of_client(deployment: Deployment, scale_index: int, cache_salt: str | None) -> str | None:
    """A client's own salt, without the suffix of the scale that its request begins at, if a router has added that."""
    return (cache_salt or "").removesuffix(suffix(deployment, scale_index)) or None


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

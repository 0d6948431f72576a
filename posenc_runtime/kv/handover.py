"""What a server that has prefilled a prompt tells the one that decodes it: the scale of its keys, and a signature.

The scale travels with the parameters of the transfer, through a router. A client that wrote a scale of its own would
have another engine cache keys under the name of a scale that they do not have, and every request with the same prompt
would read them. So the two servers share a key, and the signature binds the scale to the prompt, to the blocks and to
the time for which the blocks are kept.
"""

from __future__ import annotations

import array
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any

from posenc_runtime.kv.deployment import Deployment

# Parameters of a transfer that say where the keys are. Without them a decoding engine cannot ask for keys.
NEEDED = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size")
# What is signed: these, and those that say how the keys are fetched.
_PLACE = (*NEEDED, "dcp_size", "pp_size", "remote_num_tokens", "transfer_mode")


def sign(
    key: bytes,
    deployment: Deployment,
    scale: float,
    *,
    expires: int,
    prompt_token_ids: Sequence[int],
    contents: Sequence[str],
    place: Mapping[str, Any],
) -> str:
    """The signature of a prefilled prompt, 64 hexadecimal digits (HMAC with SHA-256, RFC 2104).

    Args:
        key: of the servers that hand keys to each other.
        scale: at which the keys are rotated.
        expires: until when the signature is valid, in seconds since 1970.
        contents: what else decides the keys: names of images and of an adapter.
        place: parameters of the transfer, as the prefilling engine answers them.
    """
    tokens = hashlib.sha256(array.array("q", prompt_token_ids).tobytes()).hexdigest()
    where = [place.get(name) for name in _PLACE]
    said = json.dumps([deployment.fingerprint, float(scale), expires, tokens, list(contents), where])
    return hmac.new(key, said.encode(), hashlib.sha256).hexdigest()


def scale_of(
    key: bytes,
    deployment: Deployment,
    params: Mapping[str, Any],
    *,
    now: float,
    prompt_token_ids: Sequence[int],
    contents: Sequence[str],
) -> float:
    """The scale of the keys that a request brings.

    Args:
        params: ``kv_transfer_params`` of the request, as a prefilling server has answered them.
        now: seconds since 1970.
        contents: as in ``sign``.

    Raises:
        ValueError: when they name no scale, are not signed for this prompt, these blocks and this deployment, or are no
            longer valid.
    """
    said = params.get("posenc")
    scale, expires, signature = (
        said.get(name) if isinstance(said, Mapping) else None for name in ("scale", "expires", "signature")
    )
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if scale is None or not is_number or type(expires) is not int or not isinstance(signature, str):
        raise ValueError(
            "kv_transfer_params.posenc must have the scale, expires and the signature that the prefilling server has "
            "answered, got none: pass on all that it answers at kv_transfer_params"
        )
    if missing := [name for name in NEEDED if params.get(name) is None]:
        raise ValueError(
            f"kv_transfer_params must have {', '.join(missing)} as the prefilling server has answered it, got none: "
            "pass on all that it answers at kv_transfer_params"
        )
    expected = sign(
        key,
        deployment,
        float(scale),
        expires=expires,
        prompt_token_ids=prompt_token_ids,
        contents=contents,
        place=params,
    )
    if not hmac.compare_digest(expected.encode(), signature.encode()):
        raise ValueError(
            "kv_transfer_params.posenc.signature must be that of this prompt and of these blocks, but it is another "
            "one: pass on what the prefilling server has answered to the same prompt, and give both servers the same "
            "POSENC_TRANSFER_KEY and scaling"
        )
    if now > expires:
        raise ValueError(
            f"kv_transfer_params.posenc.expires must not be over, got {expires} at {now:.0f}: the prefilling server "
            "may have given the blocks to others. Let it prefill the prompt again, and compare the servers' clocks"
        )
    return float(scale)

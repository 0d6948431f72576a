"""What a server that has prefilled a prompt tells the one that decodes it: the scale of its keys, and a signature.

The scale travels with the parameters of the transfer, through a router. A client that wrote a scale of its own would
have another engine cache keys under the name of a scale that they do not have, and every request with the same prompt
would read them. So the two servers share a key, and the signature binds the scale to the prompt and to the blocks.
"""

from __future__ import annotations

import array
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any

from posenc_runtime.kv.deployment import Deployment

# Of the parameters of a transfer, those that say which blocks of which engine have the keys.
_PLACE = ("remote_engine_id", "remote_request_id", "remote_block_ids")


def sign(
    key: bytes,
    deployment: Deployment,
    scale: float,
    *,
    prompt_token_ids: Sequence[int],
    contents: Sequence[str],
    place: Mapping[str, Any],
) -> str:
    """The signature of a prefilled prompt, 64 hexadecimal digits (HMAC with SHA-256, RFC 2104).

    Args:
        key: of the servers that hand keys to each other.
        scale: at which the keys are rotated.
        contents: what else decides the keys: names of images and of an adapter.
        place: parameters of the transfer, as the prefilling engine answers them.
    """
    tokens = hashlib.sha256(array.array("q", prompt_token_ids).tobytes()).hexdigest()
    blocks = [[int(block) for block in group] for group in place["remote_block_ids"]]
    where = [place[name] if name != "remote_block_ids" else blocks for name in _PLACE]
    said = json.dumps([deployment.fingerprint, float(scale), tokens, list(contents), where])
    return hmac.new(key, said.encode(), hashlib.sha256).hexdigest()


def scale_of(
    key: bytes,
    deployment: Deployment,
    params: Mapping[str, Any],
    *,
    prompt_token_ids: Sequence[int],
    contents: Sequence[str],
) -> float:
    """The scale of the keys that a request brings.

    Args:
        params: ``kv_transfer_params`` of the request, as a prefilling server has answered them.
        contents: as in ``sign``.

    Raises:
        ValueError: when they name no scale, or are not signed for this prompt, these blocks and this deployment.
    """
    said = params.get("posenc")
    scale = said.get("scale") if isinstance(said, Mapping) else None
    signature = said.get("signature") if isinstance(said, Mapping) else None
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not isinstance(signature, str):
        raise ValueError(
            "kv_transfer_params.posenc must have the scale and the signature that the prefilling server has answered, "
            "got none: pass on all that it answers at kv_transfer_params"
        )
    try:
        expected = sign(key, deployment, scale, prompt_token_ids=prompt_token_ids, contents=contents, place=params)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"kv_transfer_params must have {', '.join(_PLACE)} as the prefilling server has answered them: pass on all "
            "that it answers at kv_transfer_params"
        ) from None
    if not hmac.compare_digest(expected.encode(), signature.encode()):
        raise ValueError(
            "kv_transfer_params.posenc.signature must be that of this prompt and of these blocks, but it is another "
            "one: pass on what the prefilling server has answered to the same prompt, and give both servers the same "
            "POSENC_TRANSFER_KEY and scaling"
        )
    return float(scale)

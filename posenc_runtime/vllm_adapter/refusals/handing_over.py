"""Which scaled engines may hand the keys of prompts to other engines, or take theirs. Decision 78."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.contract.cached_keys import OWN_SCALES, are_float8
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import NIXL

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from posenc_runtime.kv.deployment import Deployment


def refuse_handing_over(vllm_config: VllmConfig, deployment: Deployment) -> None:
    """Check an engine with NIXL's connector whose requests are scaled.

    Raises:
        Unsupported: when keys might not have the scale that goes with them, or no test shows that answers are right.
    """
    if are_float8(vllm_config):
        raise Unsupported(
            f"kv_cache_dtype must not be float8 where {NIXL} hands keys of scaled requests over, got "
            f"{vllm_config.cache_config.cache_dtype}: whether keys or queries carry the attention factor depends on "
            "on_crossing, and engines do not compare that. Set it to auto"
        )
    for what, is_so in (
        ("recurrent layers", vllm_config.model_config.is_hybrid),
        ("positions of images (M-RoPE)", vllm_config.model_config.uses_mrope),
        ("keys with scales of their own", vllm_config.cache_config.cache_dtype in OWN_SCALES),
    ):
        if is_so:
            raise Unsupported(
                f"{NIXL} must be left out where there are {what} and requests are scaled: no test shows that answers "
                "are right. Leave kv_transfer_config out"
            )
    if len(deployment.scales) > 1 and deployment.on_crossing == "pin":
        raise Unsupported(
            f"on_crossing must be rerotate or recompute where {NIXL} hands keys over, got pin: a prefilling engine is "
            "asked for one token, so it would pin a request to another scale than the decoding engine, which knows "
            "its whole length. Set it to rerotate"
        )
    if deployment.takes_prefixes:
        raise Unsupported(
            f"prefix_reuse must be exact where {NIXL} hands keys over, got {deployment.prefix_reuse}: the keys of a "
            "reused prefix are not those that the scale of the request alone makes. Set it to exact"
        )

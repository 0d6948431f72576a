"""In which numbers an engine caches keys, and where the attention factor of a scale then goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.kv.deployment import Deployment

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# vLLM's names of caches whose keys are float8, each in units of a scale that stays: of a layer, or of a head.
FLOAT8 = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
# Types in which each key of a token and head has a scale of its own. Only vLLM's Triton attention keeps keys in them.
OWN_SCALES = {"int8_per_token_head": "int8", "fp8_per_token_head": "float8_e4m3fn"}


def are_float8(vllm_config: VllmConfig) -> bool:
    """Whether keys are cached in float8. Some layers may be left out (``kv_cache_dtype_skip_layers``)."""
    asked = vllm_config.cache_config.cache_dtype
    # vLLM's layers take what the checkpoint was quantised for, where nobody asks for another type.
    by_checkpoint = (
        asked == "auto" and getattr(getattr(vllm_config, "quant_config", None), "kv_cache_scheme", None) is not None
    )
    return asked in FLOAT8 or by_checkpoint


def factor_is_on_queries(vllm_config: VllmConfig | None, deployment: Deployment) -> bool:
    """Whether tables give queries the square of a scale's attention factor, and keys none of it.

    So it is where float8 keys are re-rotated. A factor on keys would round even what a crossing does not turn, at each
    crossing alike, so that errors add up. Elsewhere keys have the factor, as in a static deployment of vLLM.
    Decision 28.
    """
    return vllm_config is not None and deployment.rerotates and are_float8(vllm_config)

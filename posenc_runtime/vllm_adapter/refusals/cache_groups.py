"""Which kinds of KV caches can be served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec, MLAAttentionSpec

from posenc_runtime.vllm_adapter.errors import Unsupported
from posenc_runtime.vllm_adapter.worker.cache_layers import layer_specs

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from posenc_runtime.kv.deployment import Deployment


def refuse_cache_groups(deployment: Deployment, kv_cache_config: KVCacheConfig) -> None:
    """Check how the layers' keys are cached.

    Raises:
        Unsupported: when a layer does not cache the keys of tokens, or when the deployment re-rotates keys and a layer
            frees some of them while their request runs. Decision 20.
    """
    for group in kv_cache_config.kv_cache_groups:
        for layer, spec in layer_specs(group).items():
            kind = type(spec).__name__
            if not isinstance(spec, AttentionSpec) or isinstance(spec, MLAAttentionSpec):
                raise Unsupported(
                    f"posenc serves only layers that cache the keys of tokens, but the KV cache of {layer} is a {kind}"
                )
            if deployment.rerotates and type(spec) is not FullAttentionSpec:
                raise Unsupported(
                    f"re-rotation needs layers that keep all keys of a request, but the KV cache of {layer} is a "
                    f"{kind}: set on_crossing to recompute or pin, and prefix_reuse to exact"
                )

"""How each layer's keys are cached, which vLLM says of groups of layers, and which ways can be served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs

from posenc_runtime.vllm_adapter.support import Unsupported

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

    from posenc_runtime.kv.deployment import Deployment


def layer_specs(group: KVCacheGroupSpec) -> dict[str, KVCacheSpec]:
    """By layer, how its keys are cached.

    Layers whose pages differ in size, by their number of KV heads or their data type, share blocks where they keep the
    same tokens; workers are then given a spec for each, the scheduler that of one. Layers that read another's cache are
    left out of those. Decision 6.
    """
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return dict(spec.kv_cache_specs)
    return dict.fromkeys(group.layer_names, spec)


def refuse_cache_groups(deployment: Deployment, kv_cache_config: KVCacheConfig) -> None:
    """Check how the layers' keys are cached.

    Raises:
        Unsupported: when a layer caches something else than its keys, or keys are to be re-rotated, and some are given
            back while their request goes on. Decision 20.
    """
    for group in kv_cache_config.kv_cache_groups:
        for layer, spec in layer_specs(group).items():
            kind = type(spec).__name__
            if not isinstance(spec, AttentionSpec) or isinstance(spec, MLAAttentionSpec):
                raise Unsupported(f"posenc serves layers that cache the keys of tokens, but {layer} has a {kind}")
            if deployment.rerotates and type(spec) is not FullAttentionSpec:
                raise Unsupported(
                    f"re-rotation needs layers that keep all keys of a request, but {layer} has a {kind}: set "
                    "on_crossing to recompute or pin, and prefix_reuse to exact"
                )

"""How each layer's keys are cached, which vLLM says of groups of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec


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

"""How each layer's keys are cached, and which groups of layers cache keys. vLLM itself describes groups of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import AttentionSpec, UniformTypeKVCacheSpecs

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec


def attention_groups(kv_cache_config: KVCacheConfig) -> frozenset[int]:
    """Numbers of the groups that cache the keys of tokens, or what keys are made of (MLA)."""
    return frozenset(
        number
        for number, group in enumerate(kv_cache_config.kv_cache_groups)
        if any(isinstance(spec, AttentionSpec) for spec in layer_specs(group).values())
    )


def layer_specs(group: KVCacheGroupSpec) -> dict[str, KVCacheSpec]:
    """The cache spec of each layer of a group, by the layer's name.

    Layers that keep the same tokens share blocks, even if their pages differ in size because of KV heads or data type.
    Then vLLM gives workers a spec for each layer, and the scheduler the spec of one. These specs leave out layers that
    read another layer's cache. Decision 6.
    """
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return dict(spec.kv_cache_specs)
    return dict.fromkeys(group.layer_names, spec)

"""Which KV cache groups belong to attention layers. The groups of other layers hold states, which nothing rotates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import AttentionSpec

from posenc_runtime.vllm_adapter.worker.cache_layers import layer_specs

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig


def attention_groups(kv_cache_config: KVCacheConfig) -> frozenset[int]:
    """Numbers of the groups that cache the keys of tokens, or what keys are made of (MLA)."""
    return frozenset(
        number
        for number, group in enumerate(kv_cache_config.kv_cache_groups)
        if any(isinstance(spec, AttentionSpec) for spec in layer_specs(group).values())
    )

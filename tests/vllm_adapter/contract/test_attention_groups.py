"""Which KV cache groups have keys, as vLLM describes them."""

from __future__ import annotations

import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from posenc_runtime.vllm_adapter.contract.cache_layers import attention_groups

SIZES = {"block_size": 16, "num_kv_heads": 1, "head_size": 4, "dtype": torch.float32}
STATE = MambaSpec(block_size=16, shapes=((2, 3),), dtypes=(torch.float32,))
UNALIKE = UniformTypeKVCacheSpecs(
    block_size=16, kv_cache_specs={"a": FullAttentionSpec(**SIZES), "b": FullAttentionSpec(**SIZES | {"head_size": 8})}
)


def test_every_kind_of_attention_has_keys_and_a_recurrent_layer_has_none() -> None:
    specs = [
        STATE,
        FullAttentionSpec(**SIZES),
        SlidingWindowSpec(**SIZES, sliding_window=32),
        STATE,
        ChunkedLocalAttentionSpec(**SIZES, attention_chunk_size=32),
        MLAAttentionSpec(**SIZES),
        UNALIKE,
    ]
    groups = [KVCacheGroupSpec(["a", "b"], spec) for spec in specs]
    config = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups)
    assert attention_groups(config) == {1, 2, 4, 5, 6}

"""Layers of one KV cache group need not be cached alike, and some ways of caching cannot be served."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    UniformTypeKVCacheSpecs,
)

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.vllm_adapter.errors import Unsupported
from posenc_runtime.vllm_adapter.refusals.cache_groups import refuse_cache_groups
from posenc_runtime.vllm_adapter.worker.cache_layers import layer_specs


def full(num_kv_heads: int = 1) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=16, num_kv_heads=num_kv_heads, head_size=4, dtype=torch.float32)


CHUNKED = ChunkedLocalAttentionSpec(
    block_size=16, num_kv_heads=1, head_size=4, dtype=torch.float32, attention_chunk_size=64
)
LATENT = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=4, dtype=torch.float32)
STATE = MambaSpec(block_size=32, shapes=((2,),), dtypes=(torch.float32,))


def deployment(on_crossing: OnCrossing) -> Deployment:
    return Deployment(
        rope_type="yarn",
        scales=(1.0, 2.0),
        original_max_position_embeddings=256,
        max_model_len=512,
        on_crossing=on_crossing,
    )


def unalike(**specs: KVCacheSpec) -> KVCacheGroupSpec:
    """As vLLM tells workers of layers that share blocks, but not the size of a page."""
    made = UniformTypeKVCacheSpecs.from_specs(specs)
    assert made is not None
    return KVCacheGroupSpec(list(specs), made)


def cached(*groups: KVCacheGroupSpec) -> Any:
    return types.SimpleNamespace(kv_cache_groups=groups)


def test_layers_of_a_group_that_are_cached_alike_have_its_spec() -> None:
    assert layer_specs(KVCacheGroupSpec(["one", "other"], full())) == {"one": full(), "other": full()}


def test_layers_of_a_group_that_are_cached_unalike_have_their_own() -> None:
    assert layer_specs(unalike(wide=full(4), narrow=full(2))) == {"wide": full(4), "narrow": full(2)}


def test_layers_that_are_cached_unalike_are_served() -> None:
    refuse_cache_groups(deployment("rerotate"), cached(unalike(wide=full(4), narrow=full(2))))


def test_layers_that_give_keys_back_are_refused_where_keys_are_turned() -> None:
    groups = cached(KVCacheGroupSpec(["all"], full()), KVCacheGroupSpec(["local"], CHUNKED))
    refuse_cache_groups(deployment("pin"), groups)
    with pytest.raises(Unsupported, match=r"^re-rotation .*, but the KV cache of local is a ChunkedLocalAttentionSpec"):
        refuse_cache_groups(deployment("rerotate"), groups)


@pytest.mark.parametrize("spec", [STATE, LATENT], ids=["recurrent", "latent"])
def test_layers_that_do_not_cache_the_keys_of_tokens_are_refused(spec: KVCacheSpec) -> None:
    with pytest.raises(
        Unsupported, match=f"cache the keys of tokens, but the KV cache of layer is a {type(spec).__name__}"
    ):
        refuse_cache_groups(deployment("pin"), cached(KVCacheGroupSpec(["layer"], spec)))

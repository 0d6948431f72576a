"""Layers of one KV cache group need not be cached alike, and some ways of caching cannot be served."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, get_args

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
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
WINDOWED = SlidingWindowSpec(block_size=16, num_kv_heads=1, head_size=4, dtype=torch.float32, sliding_window=64)
SINKS = SinkFullAttentionSpec(block_size=16, num_kv_heads=1, head_size=4, dtype=torch.float32, sink_len=16)
TWO_WINDOWS = RSWASpec(block_size=16, num_kv_heads=1, head_size=4, dtype=torch.float32, rswa_window=64)
CROSS = CrossAttentionSpec(block_size=16, num_kv_heads=1, head_size=4, dtype=torch.float32)
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


@pytest.mark.parametrize("spec", [WINDOWED, CHUNKED, LATENT], ids=["window", "chunks", "latent"])
def test_layers_that_give_keys_back_and_latents_are_served_where_keys_are_turned(spec: KVCacheSpec) -> None:
    groups = cached(KVCacheGroupSpec(["all"], full()), KVCacheGroupSpec(["other"], spec))
    for on_crossing in get_args(OnCrossing):
        refuse_cache_groups(deployment(on_crossing), groups)


@pytest.mark.parametrize("spec", [SINKS, TWO_WINDOWS], ids=["sinks", "two-windows"])
def test_layers_whose_blocks_are_not_those_of_a_request_in_order_are_not_turned(spec: KVCacheSpec) -> None:
    groups = cached(KVCacheGroupSpec(["layer"], spec))
    refuse_cache_groups(deployment("pin"), groups)
    refuse_cache_groups(deployment("recompute"), groups)
    rule = f"^re-rotation needs blocks .* in their order, but layer has a {type(spec).__name__}: set on_crossing to rec"
    with pytest.raises(Unsupported, match=rule):
        refuse_cache_groups(deployment("rerotate"), groups)


def test_states_are_served_and_no_request_begins_with_a_prefix_of_another_scale() -> None:
    groups = cached(KVCacheGroupSpec(["layer"], full()), KVCacheGroupSpec(["recurrent"], STATE))
    for on_crossing in get_args(OnCrossing):
        refuse_cache_groups(deployment(on_crossing), groups)
    with pytest.raises(
        Unsupported, match=r"^prefix_reuse must be exact for models with recurrent layers, got rerotate"
    ):
        refuse_cache_groups(dataclasses.replace(deployment("pin"), prefix_reuse="rerotate"), groups)


def test_layers_that_are_cached_in_an_unknown_way_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"or recurrent states, but layer has a CrossAttentionSpec$"):
        refuse_cache_groups(deployment("pin"), cached(KVCacheGroupSpec(["layer"], CROSS)))

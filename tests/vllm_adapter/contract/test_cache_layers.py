"""Layers of one KV cache group need not be cached alike, and some ways of caching cannot be served."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.vllm_adapter.contract.cache_layers import layer_specs
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.refusals.cache_groups import refuse_cache_groups


def full(num_kv_heads: int = 1) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=16, num_kv_heads=num_kv_heads, head_size=4, dtype=torch.float32)


SIZES: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 4, "dtype": torch.float32}
CHUNKED = ChunkedLocalAttentionSpec(**SIZES, attention_chunk_size=64)
WINDOWED = SlidingWindowSpec(**SIZES, sliding_window=64)
LATENT = MLAAttentionSpec(**SIZES)
STATE = MambaSpec(block_size=32, shapes=((2,),), dtypes=(torch.float32,))
UNKNOWN = [
    CircularBufferSpec(**SIZES),
    SlidingWindowMLASpec(**SIZES, sliding_window=64),
    EncoderOnlyAttentionSpec(**SIZES),
    CrossAttentionSpec(**SIZES),
    HiddenStateCacheSpec(**SIZES),
]
UNORDERED = [SinkFullAttentionSpec(**SIZES, sink_len=16), RSWASpec(**SIZES, rswa_window=64)]


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


@pytest.mark.parametrize("on_crossing", ["rerotate", "recompute", "pin"])
@pytest.mark.parametrize("spec", [CHUNKED, WINDOWED, LATENT, STATE], ids=lambda spec: type(spec).__name__)
def test_windows_latents_and_states_are_served(spec: KVCacheSpec, on_crossing: OnCrossing) -> None:
    groups = cached(KVCacheGroupSpec(["all"], full()), KVCacheGroupSpec(["other"], spec))
    refuse_cache_groups(deployment(on_crossing), groups)


@pytest.mark.parametrize("spec", UNKNOWN, ids=lambda spec: type(spec).__name__)
def test_another_kind_of_cache_is_refused_by_name(spec: KVCacheSpec) -> None:
    with pytest.raises(Unsupported, match=f"recurrent states, but layer has a {type(spec).__name__}$"):
        refuse_cache_groups(deployment("pin"), cached(KVCacheGroupSpec(["layer"], spec)))


@pytest.mark.parametrize("spec", UNORDERED, ids=lambda spec: type(spec).__name__)
def test_blocks_that_do_not_follow_positions_are_refused_where_keys_are_turned(spec: KVCacheSpec) -> None:
    groups = cached(KVCacheGroupSpec(["all"], full()), KVCacheGroupSpec(["other"], spec))
    refuse_cache_groups(deployment("pin"), groups)
    with pytest.raises(Unsupported, match=f"^re-rotation .*, but other has a {type(spec).__name__}: set on_"):
        refuse_cache_groups(deployment("rerotate"), groups)


def test_states_are_refused_where_prefixes_of_another_scale_are_reused() -> None:
    reusing = dataclasses.replace(deployment("pin"), prefix_reuse="rerotate")
    refuse_cache_groups(reusing, cached(KVCacheGroupSpec(["local"], CHUNKED)))
    with pytest.raises(Unsupported, match=r"^prefix_reuse must be exact for models with recurrent layers, got r"):
        refuse_cache_groups(reusing, cached(KVCacheGroupSpec(["layer"], STATE)))

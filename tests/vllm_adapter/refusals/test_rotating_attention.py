"""Attention that rotates: what reaches vLLM's implementation, and what lies in its cache."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends import flash_attn, triton_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from posenc_runtime.encodings.spec import Frequencies, RotarySpec
from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker import attention
from posenc_runtime.vllm_adapter.in_worker.attention.fused_rotary import backend as rotating
from posenc_runtime.vllm_adapter.in_worker.attention.fused_rotary import flash as rotating_flash
from posenc_runtime.vllm_adapter.in_worker.attention.fused_rotary import triton as rotating_triton
from posenc_runtime.vllm_adapter.in_worker.attention.fused_rotary.backend import PositionsInMetadata, RotatesInAttention
from posenc_runtime.vllm_adapter.in_worker.scales_in_attention import rotate_in_attention
from posenc_runtime.vllm_adapter.in_worker.worker_state import Rotary
from tests.tolerance import KEY_TURNED_BY_KERNEL, ROUNDED_TO_NEAREST

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 4, 2, 64, 16
FACTOR = 1.25
INV_FREQ = 10_000.0 ** (-torch.arange(HEAD_DIM // 2, dtype=torch.float64) * 2 / HEAD_DIM)


class Seen:
    """In the place of vLLM's implementation: keeps what it is given."""

    supports_quant_query_input = True

    def __init__(self, *arguments: Any, **_: Any) -> None:
        self.arguments = arguments

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        self.loaded = act_dtype

    def do_kv_cache_update(self, *_: Any) -> None:
        raise AssertionError("vLLM's own writing of the cache must not run")

    def forward(self, layer: Any, query: Tensor, *others: Any, **named: Any) -> Tensor:
        self.query, self.named = query, named
        return query


class Rotating(RotatesInAttention, Seen):
    pass


def made(kv_cache_dtype: str = "auto", shared: str | None = None) -> Rotating:
    return Rotating(NUM_HEADS, HEAD_DIM, 0.125, NUM_KV_HEADS, None, None, kv_cache_dtype, None, "decoder", shared)


def scales() -> RotaryScales:
    """Scale 1 of block 1; block 0 has scale 0."""
    frequencies = [Frequencies(INV_FREQ, 1.0), Frequencies(INV_FREQ / 2, FACTOR)]
    return RotaryScales.of(frequencies, torch.tensor([0, 1]), BLOCK_SIZE, True)


LAYER = types.SimpleNamespace(_q_scale=torch.tensor(0.5), _k_scale=torch.tensor(0.25), _v_scale=torch.tensor(0.5))
POSITIONS = torch.tensor([7, 100, 0, 0])
METADATA = types.SimpleNamespace(
    num_actual_tokens=2, positions=POSITIONS, slot_mapping=torch.tensor([5, BLOCK_SIZE + 3, -1, -1])
)


def projected() -> list[Tensor]:
    """Queries, keys and values of two tokens, and two that fill a captured graph up."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(4, heads, HEAD_DIM, generator=draw) for heads in (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)]


def turned(states: Tensor, token: int, slowed: float, factor: float) -> Tensor:
    first, second = states[token].double().chunk(2, dim=-1)
    angle = POSITIONS[token] * INV_FREQ.float().double() / slowed
    pairs = torch.complex(first, second) * torch.polar(torch.full_like(angle, factor), angle)
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def assert_near(found: Tensor, expected: Tensor, relative: float) -> None:
    assert (found.double() - expected).abs().max() <= relative * expected.abs().max() * 2**0.5


def test_queries_arrive_rotated_and_keys_and_values_lie_in_the_cache() -> None:
    impl, (query, key, value) = made(), projected()
    impl.rotate_by(scales())
    cache = torch.zeros(2, NUM_KV_HEADS, BLOCK_SIZE, 2 * HEAD_DIM)
    given = query.clone()
    impl.do_kv_cache_update(LAYER, key, value, cache, METADATA.slot_mapping)
    impl.forward(LAYER, query, key, value, cache, METADATA, torch.empty_like(query), output_scale=None)
    assert impl.named == {"output_scale": None}
    assert impl.query.shape == (2, NUM_HEADS, HEAD_DIM)
    assert torch.equal(query, given)
    for token, (block, offset, slowed, factor) in enumerate(((0, 5, 1, 1.0), (1, 3, 2, FACTOR))):
        assert_near(impl.query[token], turned(query, token, slowed, factor**2), KEY_TURNED_BY_KERNEL)
        assert_near(cache[block, :, offset, :HEAD_DIM], turned(key, token, slowed, 1.0), KEY_TURNED_BY_KERNEL)
        assert torch.equal(cache[block, :, offset, HEAD_DIM:], value[token])


def test_a_float8_cache_gets_queries_that_are_quantised_after_they_are_rotated() -> None:
    impl, (query, key, value) = made("fp8"), projected()
    assert not impl.supports_quant_query_input  # so that vLLM does not quantise before
    impl.process_weights_after_loading(torch.bfloat16)
    assert impl.loaded == torch.bfloat16
    assert impl.supports_quant_query_input  # so that it tells its kernel by what
    impl.rotate_by(scales())
    cache = torch.zeros(2, NUM_KV_HEADS, BLOCK_SIZE, 2 * HEAD_DIM, dtype=torch.uint8)
    impl.forward(LAYER, query, key, value, cache, METADATA, torch.empty_like(query))
    assert impl.query.dtype == torch.float8_e4m3fn
    rounding = ROUNDED_TO_NEAREST["float8_e4m3fn"]
    assert_near(impl.query[1].float() * 0.5, turned(query, 1, 2, FACTOR**2), rounding)
    stored = cache.view(torch.float8_e4m3fn)[1, :, 3].float()
    assert_near(stored[:, :HEAD_DIM] * 0.25, turned(key, 1, 2, 1.0), rounding)


def test_nothing_is_rotated_while_memory_is_measured() -> None:
    impl, (query, key, value) = made(), projected()
    impl.forward(LAYER, query, key, value, torch.empty(0), None, torch.empty_like(query))
    assert impl.query is query


def test_a_step_may_come_before_the_cache_is_registered() -> None:
    # vLLM measures what its CUDA graphs take with a small cache of their own, which connectors never see.
    impl, (query, key, value) = made("fp8"), projected()
    cache = torch.zeros(2, NUM_KV_HEADS, BLOCK_SIZE, 2 * HEAD_DIM, dtype=torch.uint8)
    impl.forward(LAYER, query, key, value, cache, METADATA, torch.empty_like(query))
    assert impl.query.shape == (2, NUM_HEADS, HEAD_DIM) and impl.query.dtype == torch.float8_e4m3fn
    assert not cache.any()


def test_a_layer_that_reads_the_keys_of_another_is_refused() -> None:
    with pytest.raises(
        Unsupported, match=r"fused_rotary must be off for a model with a layer that reads .*, got .* of layers\.3"
    ):
        made(shared="layers.3")


def test_metadata_says_where_tokens_stand() -> None:
    class Built:
        def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
            return types.SimpleNamespace(of=(common_prefix_len, fast_build))

    class Builder(PositionsInMetadata, Built):
        pass

    metadata = Builder().build(3, types.SimpleNamespace(positions=POSITIONS), True)
    assert metadata.of == (3, True)
    assert metadata.positions is POSITIONS


@pytest.mark.parametrize(
    ("asked", "support"),
    [(None, AttentionCGSupport.ALWAYS), (3, AttentionCGSupport.ALWAYS), (2, AttentionCGSupport.UNIFORM_BATCH)],
)
def test_the_asked_for_version_of_flash_attention_says_which_steps_are_captured(
    asked: int | None, support: AttentionCGSupport, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_hopper = AttentionCGSupport.ALWAYS
    monkeypatch.setattr(flash_attn.FlashAttentionMetadataBuilder, "_cudagraph_support", on_hopper)
    vllm_config: Any = types.SimpleNamespace(attention_config=types.SimpleNamespace(flash_attn_version=asked))
    layers: Any = None
    builder = rotating_flash.PosencFlashAttentionMetadataBuilder
    assert builder.get_cudagraph_support(vllm_config, layers) == support


def rotary(slowed: float = 1.0, *, factor_on_keys: bool = False) -> Rotary:
    deployment = Deployment(
        rope_type="linear", scales=(1.0, 2.0), original_max_position_embeddings=64, max_model_len=128
    )
    spec = RotarySpec(rotary_dim=HEAD_DIM, rope_theta=10_000.0 * slowed, original_max_position_embeddings=64)
    return Rotary(
        deployment=deployment,
        head_dim=HEAD_DIM,
        own=spec,
        is_neox_style=True,
        is_fused=True,
        factor_on_keys=factor_on_keys,
    )


def engine(**impls: Any) -> Any:
    backend = types.SimpleNamespace(get_name=lambda: "FLASHINFER")
    layers = {
        name: types.SimpleNamespace(impl=impl, attn_backend=backend, head_size=HEAD_DIM) for name, impl in impls.items()
    }
    return types.SimpleNamespace(compilation_config=types.SimpleNamespace(static_forward_context=layers))


@pytest.mark.parametrize("factor_on_keys", [False, True], ids=["pure-keys", "stock-keys"])
def test_every_layer_is_given_the_scales_of_its_blocks(factor_on_keys: bool) -> None:
    impls, block_scale = {"a": made(), "b": made()}, torch.zeros(8, dtype=torch.int64)
    rotate_in_attention(engine(**impls), {"a": 16, "b": 32}, [rotary(factor_on_keys=factor_on_keys)], block_scale)
    assert [impl._scales.block_size for impl in impls.values()] == [16, 32]
    for impl in impls.values():
        assert impl._scales.block_scale is block_scale
        assert impl._scales.phases.shape == (2, HEAD_DIM // 2)
        assert impl._scales.factor_on_keys == factor_on_keys


def test_a_layer_whose_attention_does_not_rotate_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"for every layer, but vLLM gave b FLASHINFER: set engine\.attention_backend"):
        rotate_in_attention(engine(a=made(), b=object()), {"a": 16, "b": 16}, [rotary()], torch.zeros(8).long())


def test_layers_that_rotate_differently_are_refused() -> None:
    with pytest.raises(ValueError, match="one rotary embedding for all layers, but this model built 2 that differ"):
        rotate_in_attention(engine(a=made()), {"a": 16}, [rotary(), rotary(2)], torch.zeros(8).long())


@pytest.mark.parametrize(
    ("member", "ours", "stock", "rotating_impl"),
    [
        (
            AttentionBackendEnum.FLASH_ATTN,
            rotating_flash.PosencFlashAttentionBackend,
            flash_attn.FlashAttentionImpl,
            rotating_flash.RotatingFlashAttentionImpl,
        ),
        (
            AttentionBackendEnum.TRITON_ATTN,
            rotating_triton.PosencTritonAttentionBackend,
            triton_attn.TritonAttentionImpl,
            rotating_triton.RotatingTritonAttentionImpl,
        ),
    ],
    ids=["flash", "triton"],
)
def test_vllms_backends_rotate_where_the_engine_does_and_are_stock_elsewhere(
    member: Any, ours: Any, stock: Any, rotating_impl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention.register()
    assert member.get_class() is ours
    assert ours.get_name() == member.name
    assert ours.get_impl_cls() is stock
    monkeypatch.setattr(rotating, "is_fused", lambda _: True)
    assert ours.get_impl_cls() is rotating_impl
    assert rotating_impl.__mro__[1] is RotatesInAttention
    assert rotating_impl.__mro__[2] is stock
    assert ours.get_builder_cls().__mro__[1] is PositionsInMetadata


def test_heads_of_which_a_part_is_rotated_apart_are_refused() -> None:
    wide = dataclasses.replace(rotary(), head_dim=HEAD_DIM // 2)
    with pytest.raises(
        ValueError, match=f"but a has heads of {HEAD_DIM} elements, and the .* gets {HEAD_DIM // 2}: set"
    ):
        rotate_in_attention(engine(a=made()), {"a": 16}, [wide], torch.zeros(8).long())

"""What vLLM's attention on CUDA is given where queries turn, and what ours; the kernels have tests of their own."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from posenc_runtime.encodings.read_time.rerope import ReRope
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention.read_time import LayerLogits, ReadTime
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.attention.fused_rotary import backend as registered
from posenc_runtime.vllm_adapter.in_worker.attention.fused_rotary import flash, triton
from posenc_runtime.vllm_adapter.in_worker.attention.read_time_cuda import CutsLengths, TurnsQueries
from posenc_runtime.vllm_adapter.refusals import turning_backends
from posenc_runtime.vllm_adapter.refusals.turning_backends import refuse_on_cuda, refuse_other_backends

TRAINED = 128
DEPLOYMENT = Deployment(rope_type="rerope", original_max_position_embeddings=TRAINED, max_model_len=4 * TRAINED)
TURNING = {"posenc": DEPLOYMENT.to_mapping()}
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 16


@dataclasses.dataclass
class Metadata:
    seq_lens: Tensor
    query_start_loc: Tensor
    max_seq_len: int
    block_table: Tensor | None = None
    max_query_len: int = 60
    num_actual_tokens: int = 66
    scheduler_metadata: Tensor | None = dataclasses.field(default_factory=lambda: torch.ones(3))


@dataclasses.dataclass
class Divided(Metadata):
    near: Metadata | None = None


class StockBuilder:
    supports_update_block_table = supports_draft_decode_metadata_update = True
    support = AttentionCGSupport.ALWAYS

    def __init__(self, *_: Any) -> None:
        pass

    @classmethod
    def get_cudagraph_support(cls, *_: Any) -> AttentionCGSupport:
        return cls.support

    def build(self, _: int, common: Any, fast_build: bool = False) -> Metadata:
        return Metadata(common.seq_lens, common.query_start_loc, common.max_seq_len)


class Builder(CutsLengths, StockBuilder):
    divided_metadata = Divided


def config(section: dict[str, Any], graphs: CUDAGraphMode = CUDAGraphMode.NONE) -> Any:
    return types.SimpleNamespace(
        additional_config=section,
        compilation_config=types.SimpleNamespace(cudagraph_mode=graphs, max_cudagraph_capture_size=8),
        scheduler_config=types.SimpleNamespace(max_num_seqs=8),
    )


def builder(section: dict[str, Any] = TURNING, graphs: CUDAGraphMode = CUDAGraphMode.NONE) -> Builder:
    return Builder(None, [], config(section, graphs), torch.device("cpu"))


def step(requests: list[tuple[int, int]]) -> Any:
    lengths, counts = zip(*requests, strict=True)
    starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    return types.SimpleNamespace(seq_lens=seq_lens, query_start_loc=starts, max_seq_len=max(lengths))


def test_requests_whose_queries_are_all_far_are_cut_short_for_vllms_kernel() -> None:
    # Short, at the edge, past it, drafted tokens past it, a prefill across it, and one that fills a graph up.
    common = step([(7, 1), (128, 1), (129, 1), (260, 4), (150, 60), (0, 0)])
    metadata = builder().build(0, common)
    assert metadata.near.seq_lens.tolist() == [7, 128, 1, 4, 150, 0]
    assert metadata.seq_lens.tolist() == [7, 128, 129, 260, 150, 0]
    assert metadata.near.scheduler_metadata is None and metadata.scheduler_metadata is not None
    assert metadata.near.max_seq_len == metadata.max_seq_len


def test_more_requests_than_an_engine_runs_are_cut_short_too() -> None:
    metadata = builder().build(0, step([(300, 1)] * 20))
    assert metadata.near.seq_lens.tolist() == [1] * 20


def test_what_copies_metadata_field_by_field_copies_the_cut_lengths() -> None:
    for divided in (flash.DividedFlashAttentionMetadata, triton.DividedTritonAttentionMetadata):
        assert "near" in {field.name for field in dataclasses.fields(divided)}


def test_a_step_of_short_requests_is_vllms_own() -> None:
    assert type(builder().build(0, step([(7, 1), (128, 100)]))) is Metadata
    assert type(builder({}).build(0, step([(300, 1)]))) is Metadata


def test_a_graph_that_was_captured_for_long_requests_is_told_that_all_are_short() -> None:
    built = builder(graphs=CUDAGraphMode.FULL_AND_PIECEWISE)
    captured = built.build(0, step([(300, 1), (7, 1)]))
    assert captured.near.seq_lens.tolist() == [1, 7]
    assert type(built.build(0, step([(40, 1), (128, 1)]))) is Metadata
    assert captured.near.seq_lens.tolist() == [40, 128]


@pytest.mark.parametrize(
    ("section", "stock", "ours"),
    [
        (TURNING, AttentionCGSupport.ALWAYS, AttentionCGSupport.UNIFORM_BATCH),
        (TURNING, AttentionCGSupport.NEVER, AttentionCGSupport.NEVER),
        ({}, AttentionCGSupport.ALWAYS, AttentionCGSupport.ALWAYS),
    ],
    ids=["turning", "turning, and vLLM has none", "not turning"],
)
def test_steps_of_unlike_numbers_of_queries_are_not_captured(
    section: dict[str, Any], stock: AttentionCGSupport, ours: AttentionCGSupport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StockBuilder, "support", stock)
    assert Builder.get_cudagraph_support(config(section), None) is ours  # type: ignore[arg-type]


def test_nothing_changes_a_steps_metadata_behind_the_cut_lengths() -> None:
    turning, other = builder(), builder({})
    assert not turning.supports_update_block_table and not turning.supports_draft_decode_metadata_update
    assert other.supports_update_block_table and other.supports_draft_decode_metadata_update


class Stock:
    """In the place of vLLM's implementation: it keeps what it is given, and writes ones."""

    logits_soft_cap = 0

    def __init__(self, attn_type: str, sliding_window: tuple[int, int], kv_cache_dtype: str, sinks: Any = None) -> None:
        self.attn_type, self.sliding_window, self.kv_cache_dtype = attn_type, sliding_window, kv_cache_dtype
        self.scale, self.sinks = 0.25, sinks
        self.num_heads, self.num_kv_heads, self.head_size = NUM_HEADS, NUM_KV_HEADS, HEAD_DIM

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        pass

    def forward(
        self, layer: Any, query: Tensor, key: Any, value: Any, cache: Tensor, metadata: Any, out: Tensor
    ) -> Tensor:
        self.metadata = metadata
        return out.fill_(1)


class Turning(TurnsQueries, Stock):
    pass


WHOLE = ("decoder", (-1, -1))


def layer() -> Any:
    return types.SimpleNamespace(
        _q_scale=torch.tensor(0.5),
        _k_scale=torch.tensor(0.25),
        _v_scale=torch.tensor([0.5, 2.0]),
        dtype=torch.bfloat16,
        layer_name="a.layer",
    )


def told(
    kv_cache_dtype: str = "auto", sinks: Tensor | None = None, *, num_heads: int = NUM_HEADS, page: int = 64
) -> Turning:
    turning = Turning(*WHOLE, kv_cache_dtype, sinks)
    turning.num_heads = num_heads
    pages = ReRope(page=page, window=page).pages(TRAINED)
    turning.turn_by(ReadTime.of(pages, torch.ones(HEAD_DIM // 2), is_neox_style=True), layer())
    return turning


def test_heads_and_pages_that_no_kernel_takes_are_refused_before_the_first_request() -> None:
    with pytest.raises(Unsupported, match="cannot be turned on a GPU: a KV head must have at most 32"):
        told(num_heads=66)
    with pytest.raises(Unsupported, match=r"multiple of 64 tokens on a GPU, .*, got 48"):
        told(page=48)


def test_only_a_decoders_layer_that_sees_a_whole_request_may_turn_queries() -> None:
    assert Turning(*WHOLE, "auto").kind == "read_time"
    assert Turning("decoder", (63, 0), "auto").kind is None
    assert Turning("encoder_only", (-1, -1), "auto").kind is None


def attended(turning: Turning, metadata: Any, query: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    monkeypatch.setattr(ops, "read_time_attention", lambda *given, **named: seen.append((*given, named)))
    is_float8 = turning.kv_cache_dtype == "fp8"
    dtype = torch.uint8 if is_float8 else torch.bfloat16
    cache = torch.zeros(3, NUM_KV_HEADS, 32, 2 * HEAD_DIM, dtype=dtype)
    out = torch.zeros(query.shape, dtype=torch.bfloat16)
    assert turning.forward(layer(), query, None, None, cache, metadata, out) is out  # type: ignore[arg-type]
    assert bool((out == 1).all())
    return seen


def long_step() -> Any:
    return builder().build(0, step([(7, 1), (300, 5), (150, 60)]))


def test_vllms_kernel_gets_the_cut_lengths_and_ours_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    turning, metadata = told(), long_step()
    query = torch.randn(70, NUM_HEADS, HEAD_DIM).bfloat16()  # some fill a graph up
    ((given, keys, values, batch, _, scale, out, logits, named),) = attended(turning, metadata, query, monkeypatch)
    assert turning.metadata is metadata.near
    assert torch.equal(given, query[:66]) and out.shape == given.shape and scale == 0.25
    assert keys.shape == values.shape == (3, NUM_KV_HEADS, 32, HEAD_DIM)
    assert batch.seq_lens is metadata.seq_lens and named == {"only_far": True}
    assert logits == LayerLogits()


@pytest.mark.parametrize("why", ["not told how the layer rotates", "no long request"])
def test_the_step_is_vllms_where_nothing_turns(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_told = why == "no long request"
    turning = told() if is_told else Turning(*WHOLE, "auto")
    metadata = builder().build(0, step([(7, 1)])) if is_told else long_step()
    assert attended(turning, metadata, torch.zeros(70, NUM_HEADS, HEAD_DIM).bfloat16(), monkeypatch) == []
    assert turning.metadata is metadata


def test_queries_that_vllm_has_quantised_and_its_cache_are_read_by_their_scales(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = torch.randn(66, NUM_HEADS, HEAD_DIM).to(torch.float8_e4m3fn)
    ((given, keys, _, _, _, _, _, logits, _),) = attended(told("fp8"), long_step(), query, monkeypatch)
    assert given.dtype == torch.bfloat16 and torch.equal(given, (query.float() * 0.5).bfloat16())
    assert keys.dtype == torch.float8_e4m3fn
    assert logits.k_scale.tolist() == [0.25] and logits.v_scale.tolist() == [0.5, 2.0]


def test_sinks_that_are_loaded_anew_are_followed_in_place() -> None:
    sinks = torch.tensor([0.5, 1.0, 1.5, 2.0]).bfloat16()
    turning = told(sinks=sinks)
    kept = turning._logits.sinks
    sinks.fill_(3)
    turning.process_weights_after_loading(torch.bfloat16)
    assert kept is not None and kept.dtype == torch.float32 and kept.tolist() == [3.0] * 4
    assert not turning.fused_output_quant_supported(None)


@pytest.mark.parametrize(
    ("ours", "implementation"),
    [
        (flash.PosencFlashAttentionBackend, flash.TurningFlashAttentionImpl),
        (triton.PosencTritonAttentionBackend, triton.TurningTritonAttentionImpl),
    ],
    ids=["flash", "triton"],
)
def test_vllms_backends_turn_queries_where_the_deployment_does(
    ours: Any, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered, "get_current_vllm_config_or_none", lambda: config(TURNING))
    assert ours.get_impl_cls() is implementation
    assert implementation.__mro__[1] is TurnsQueries
    assert CutsLengths in ours.get_builder_cls().__mro__


ON_CUDA: dict[str, tuple[dict[str, Any], str]] = {
    "page": ({"page": 96}, "page must be a multiple of 64 tokens .*, got 96: set page"),
    "backend": (
        {"backend": AttentionBackendEnum.FLASHINFER},
        "attention_backend must be FLASH_ATTN or TRITON_ATTN .*, got FLASHINFER",
    ),
    "backends": ({"per_kind": {"decoder": "FLASH_ATTN"}}, "backend_per_kind must be left out .*, got .*: set"),
    "cache": (
        {"cache_dtype": "int8_per_token_head"},
        "kv_cache_dtype must be one of auto, .*, got int8_per_token_head",
    ),
    "images": ({"is_mm_prefix_lm": True}, "images see later tokens is not served .* Choose another rope_type"),
    "window": ({"rswa_window": 64}, "a window of 64 tokens after its prompt is not served .* Choose another rope_type"),
}


def refused(
    *,
    page: int = 64,
    backend: Any = None,
    per_kind: Any = None,
    cache_dtype: str = "auto",
    is_mm_prefix_lm: bool = False,
    rswa_window: int | None = None,
) -> None:
    settings: Any = types.SimpleNamespace(
        attention_config=types.SimpleNamespace(backend=backend, backend_per_kind=per_kind or {}),
        model_config=types.SimpleNamespace(is_mm_prefix_lm=is_mm_prefix_lm, rswa_window=rswa_window),
        cache_config=types.SimpleNamespace(cache_dtype=cache_dtype),
    )
    refuse_on_cuda(settings, "rerope", page)


@pytest.mark.parametrize("name", ON_CUDA)
def test_what_no_kernel_on_a_gpu_reads_is_refused_with_what_to_do(name: str) -> None:
    setting, message = ON_CUDA[name]
    with pytest.raises(Unsupported, match=message):
        refused(**setting)


def test_both_backends_and_caches_of_8_bits_are_served_on_a_gpu() -> None:
    for backend in (None, AttentionBackendEnum.FLASH_ATTN, AttentionBackendEnum.TRITON_ATTN):
        refused(backend=backend, cache_dtype="fp8")


def test_a_backend_that_vllm_chose_and_that_cannot_turn_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor.layers.attention import Attention

    layers = {}
    for name in ("FLASH_ATTN", "FLASHINFER"):
        layers[name.lower()] = attention = Attention.__new__(Attention)
        torch.nn.Module.__init__(attention)
        attention.attn_backend = types.SimpleNamespace(get_name=lambda name=name: name)  # type: ignore[assignment]
    refuse_other_backends(layers, "rerope")  # on a CPU there is one
    monkeypatch.setattr(turning_backends, "is_on_cuda", lambda: True)
    with pytest.raises(Unsupported, match="but vLLM gave flashinfer FLASHINFER: set"):
        refuse_other_backends(layers, "rerope")

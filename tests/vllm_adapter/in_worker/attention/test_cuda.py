"""The CUDA backend's wiring, over the kernels' references and on the CPU; the kernels have tests of their own."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends import triton_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig

from posenc_runtime.encodings.distance import Linear
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.vllm_adapter.contract.attention_choice import KEY, AttentionChoice
from posenc_runtime.vllm_adapter.in_worker import attention
from posenc_runtime.vllm_adapter.in_worker.attention import cuda
from posenc_runtime.vllm_adapter.in_worker.attention.layers import Asked
from posenc_runtime.vllm_adapter.in_worker.attention.record import RECORD
from tests.references.alibi import alibi_attention
from tests.references.cope import cope_attention_of_the_listing
from tests.tolerance import ATTENTION_FLOAT32

SLOPES = [2.0, 0.5, 0.25, 0.125]
HEAD_DIM, BLOCK_SIZE, NUM_KV_HEADS = 32, 16, 2
SCALE = HEAD_DIM**-0.5
LENGTHS, QUERIES = (70, 21), (1, 5)


@pytest.fixture(autouse=True)
def vllms_cache_kernel_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def store(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor, *_: Any) -> None:
        keys[slots // BLOCK_SIZE, slots % BLOCK_SIZE] = key[: len(slots)]
        values[slots // BLOCK_SIZE, slots % BLOCK_SIZE] = value[: len(slots)]

    monkeypatch.setattr(triton_attn, "triton_reshape_and_cache_flash", store)


class Step:
    """Two requests in the blocks of one cache: a lone query, and a chunk of a prompt."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.keys, self.values = (
            [torch.randn(length, NUM_KV_HEADS, HEAD_DIM, generator=draw) for length in LENGTHS] for _ in range(2)
        )
        self.queries = [torch.randn(own, len(SLOPES), HEAD_DIM, generator=draw) for own in QUERIES]
        self.table = torch.tensor([[3, 1, 7, 5, 2], [6, 4, 0, 0, 0]], dtype=torch.int32)
        self.cache = torch.zeros(8, BLOCK_SIZE, NUM_KV_HEADS, 2 * HEAD_DIM).transpose(1, 2)

    def slots(self, request: int) -> Tensor:
        places = torch.arange(LENGTHS[request])
        return self.table[request, places // BLOCK_SIZE].long() * BLOCK_SIZE + places % BLOCK_SIZE

    def run(self, impl: Any, *, prepared: bool = True) -> Tensor:
        layer = types.SimpleNamespace(_k_scale=None, _v_scale=None)
        if prepared:
            impl.prepare(self.cache)
        for request in range(2):
            impl.do_kv_cache_update(layer, self.keys[request], self.values[request], self.cache, self.slots(request))
        metadata = types.SimpleNamespace(
            block_table=self.table,
            query_start_loc=torch.tensor([0, 1, 6], dtype=torch.int32),
            seq_lens=torch.tensor(LENGTHS, dtype=torch.int32),
            max_query_len=max(QUERIES),
            max_seq_len=max(LENGTHS),
            causal=True,
        )
        query = torch.cat(self.queries)
        found: Tensor = impl.forward(layer, query, None, None, self.cache, metadata, torch.empty_like(query))
        return found

    def expected(self, reference: Any) -> Tensor:
        return torch.cat(
            [
                reference(query.double(), keys.double(), values.double(), SCALE)
                for query, keys, values in zip(self.queries, self.keys, self.values, strict=True)
            ]
        )


def made(kind: type, asked: Asked, **choice: Any) -> Any:
    slopes = asked.alibi_slopes
    stock = (len(SLOPES), HEAD_DIM, SCALE, NUM_KV_HEADS, slopes, None, "auto", None, "decoder", None)
    return kind(*stock, asked=asked, choice=AttentionChoice(**choice))


def test_a_layer_with_slopes_attends_over_vllms_cache() -> None:
    step, impl = Step(), made(cuda.BiasImpl, Asked(alibi_slopes=SLOPES), window_tolerance=0.0)
    found = step.run(impl)
    expected = step.expected(lambda *x: alibi_attention(*x, SLOPES))
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=ATTENTION_FLOAT32)


def test_norms_are_kept_beside_the_cache_where_a_window_needs_them() -> None:
    step, impl = Step(), made(cuda.BiasImpl, Asked(alibi_slopes=SLOPES), window_tolerance=0.125)
    step.run(impl)
    assert impl._window.tolerance == 0.125
    norms = impl._window.key_norms
    assert norms.shape == step.cache.shape[:3]
    assert torch.equal(norms[6].T, step.keys[1][:BLOCK_SIZE].norm(dim=-1).cummax(0).values)
    assert made(cuda.BiasImpl, Asked(alibi_slopes=SLOPES), window_tolerance=0.0)._window is None


def test_a_layer_with_contextual_positions_attends_over_vllms_cache() -> None:
    pos_emb = torch.randn(HEAD_DIM, 16, generator=torch.Generator().manual_seed(1))
    step, impl = Step(), made(cuda.CopeImpl, Asked(encoding="cope", cope=lambda: Cope(pos_emb, 1.0)))
    found = step.run(impl)
    expected = step.expected(lambda *x: cope_attention_of_the_listing(*x, pos_emb.double().T))
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=ATTENTION_FLOAT32)


def test_a_learned_bias_follows_weights_that_are_loaded_while_the_engine_serves() -> None:
    weight = torch.tensor([1.0, 4.0, 0.5, 2.0])
    asked = Asked(encoding="learned", distance_bias=lambda: Linear(weight * 0.5))
    step, impl = Step(), made(cuda.BiasImpl, asked, window_tolerance=0.0)
    impl.process_weights_after_loading(torch.float32)  # the first ones come before there is a cache
    step.run(impl)
    address = impl._form.slope.data_ptr()
    weight.copy_(2 * torch.tensor(SLOPES))
    impl.process_weights_after_loading(torch.float32)
    expected = step.expected(lambda *x: alibi_attention(*x, SLOPES))
    torch.testing.assert_close(step.run(impl, prepared=False).double(), expected, rtol=0, atol=ATTENTION_FLOAT32)
    assert impl._form.slope.data_ptr() == address  # which CUDA graphs hold


def test_contextual_positions_follow_weights_that_are_loaded_while_the_engine_serves() -> None:
    loaded = [torch.randn(HEAD_DIM, 16, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    weight = loaded[0].T.contiguous()  # so that the layer's table is a copy of it
    step, impl = Step(), made(cuda.CopeImpl, Asked(encoding="cope", cope=lambda: Cope(weight.T, 1.0)))
    impl.process_weights_after_loading(torch.float32)
    step.run(impl)
    weight.copy_(loaded[1].T)
    impl.process_weights_after_loading(torch.float32)
    expected = step.expected(lambda *x: cope_attention_of_the_listing(*x, loaded[1].double().T))
    torch.testing.assert_close(step.run(impl, prepared=False).double(), expected, rtol=0, atol=ATTENTION_FLOAT32)


def test_nothing_is_attended_to_while_memory_is_measured() -> None:
    impl = made(cuda.BiasImpl, Asked(alibi_slopes=SLOPES))
    output = torch.ones(3, len(SLOPES), HEAD_DIM)
    assert not impl.forward(None, output, None, None, None, None, output).any()


@pytest.mark.parametrize("registered", [True, False], ids=["registered", "never-registered"])
@pytest.mark.parametrize("kind", ["bias", "cope"])
def test_a_step_may_come_before_its_cache_does_and_what_is_kept_beside_it_follows(kind: str, registered: bool) -> None:
    # vLLM measures what its CUDA graphs take with a small cache of their own, which connectors never see.
    pos_emb = torch.randn(HEAD_DIM, 16, generator=torch.Generator().manual_seed(1))
    asked = Asked(alibi_slopes=SLOPES) if kind == "bias" else Asked(encoding="cope", cope=lambda: Cope(pos_emb, 1.0))
    impl = made(cuda.BiasImpl if kind == "bias" else cuda.CopeImpl, asked, window_tolerance=1e-3)
    measured = Step().run(impl, prepared=False)
    assert measured.isfinite().all()
    step = Step()
    step.cache = torch.zeros(20, BLOCK_SIZE, NUM_KV_HEADS, 2 * HEAD_DIM).transpose(1, 2)
    assert torch.equal(step.run(impl, prepared=registered), measured)
    if kind == "bias":
        assert impl._window.key_norms.shape == step.cache.shape[:3]


@pytest.mark.parametrize(
    ("kv_cache_dtype", "use_dcp", "reasons"),
    [("auto", False, []), ("fp8", False, ["kv_cache_dtype not supported"]), ("auto", True, ["DCP not supported"])],
)
def test_the_backend_that_is_asked_for_says_what_it_cannot_do(
    kv_cache_dtype: Any, use_dcp: bool, reasons: list[str]
) -> None:
    attention.register()
    backend = AttentionBackendEnum.CUSTOM.get_class()
    assert backend is cuda.PosencCUDABackend and backend.get_name() == "CUSTOM"
    asked = AttentionSelectorConfig(128, torch.bfloat16, kv_cache_dtype, None, use_kv_connector=True, use_dcp=use_dcp)
    assert backend.validate_configuration(device_capability=DeviceCapability(9, 0), **asked._asdict()) == reasons


@pytest.mark.parametrize(
    ("needs", "support"),
    [("bias", AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE), ("plain", AttentionCGSupport.NEVER)],
)
def test_steps_of_lone_queries_are_captured_where_kernels_run(needs: Any, support: AttentionCGSupport) -> None:
    config: Any = types.SimpleNamespace(additional_config={KEY: AttentionChoice(needs=needs).to_mapping()})
    assert cuda.PosencMetadataBuilder.get_cudagraph_support(config, None) == support  # type: ignore[arg-type]


def test_what_kernels_count_is_reported_once() -> None:
    RECORD.take()
    RECORD.windows.on(torch.device("cpu")).add_(torch.tensor([3, 5]))
    assert RECORD.take() == {"window_kv_blocks_read": {"all": 3}, "window_kv_blocks_skipped": {"all": 5}}
    RECORD.windows.on(torch.device("cpu")).add_(torch.tensor([1, 0]))
    assert RECORD.take() == {"window_kv_blocks_read": {"all": 1}}
    assert RECORD.take() == {}


@pytest.mark.parametrize(
    ("cache", "rule"),
    [
        (
            torch.zeros(2, 2, 16, 2 * 1024, dtype=torch.bfloat16),
            "at most 1024 bytes in a tile, got 2048 bytes for head_dim 1024",
        ),
        (torch.zeros(2, 2, 16, 2 * 320), "got 2048 bytes for head_dim 320 of torch.float32"),
        (torch.zeros(2, 3, 16, 2 * 64), "num_kv_heads must divide num_heads, got 3 and 4"),
        (torch.zeros(2, 2, 16, 2 * 64, dtype=torch.float64), "must be bfloat16, float16 or float32, got torch.float64"),
    ],
    ids=["wide-heads", "wide-heads-rounded-up", "uneven-groups", "float64"],
)
def test_heads_that_have_no_room_in_a_tile_are_refused_when_the_engine_starts(cache: Tensor, rule: str) -> None:
    head_dim = cache.shape[3] // 2
    stock = (4, head_dim, SCALE, cache.shape[1], SLOPES, None, "auto", None, "decoder", None)
    impl: Any = cuda.BiasImpl(*stock, asked=Asked(alibi_slopes=SLOPES), choice=AttentionChoice())
    with pytest.raises(ValueError, match=rule):
        impl.prepare(cache)

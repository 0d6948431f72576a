"""The CPU backend's wiring: what a layer asked for and what the deployment chose reach the kernels."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.v1.attention.backends import cpu_attn

from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.in_worker.attention import cpu
from posenc_runtime.vllm_adapter.in_worker.attention.layers import Asked
from posenc_runtime.vllm_adapter.in_worker.attention.record import RECORD
from tests.references.alibi import alibi_attention
from tests.references.cope import cope_attention_of_the_listing
from tests.tolerance import ATTENTION_FLOAT32

SLOPES = [2.0, 0.5, 0.25, 0.125]
HEAD_DIM, BLOCK_SIZE, NUM_KV_HEADS, LENGTH, QUERIES = 32, 32, 2, 100, 5
SCALE = HEAD_DIM**-0.5


@pytest.fixture(autouse=True)
def an_engine_that_serves_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    config = types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=LENGTH, dtype=torch.float32))
    for module in (cpu, cpu_attn):
        monkeypatch.setattr(module, "get_current_vllm_config", lambda: config)


def made(kind: type, asked: Asked, **choice: Any) -> Any:
    stock = (len(SLOPES), HEAD_DIM, SCALE, NUM_KV_HEADS, asked.alibi_slopes, None, "auto", None, "decoder", None)
    impl: Any = kind(*stock, asked=asked, choice=AttentionChoice(**choice))
    impl.process_weights_after_loading(torch.float32)
    return impl


class Step:
    """The last queries of one request, whose keys were cached at one go."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.keys, self.values = (torch.randn(LENGTH, NUM_KV_HEADS, HEAD_DIM, generator=draw) for _ in range(2))
        self.query = torch.randn(QUERIES, len(SLOPES), HEAD_DIM, generator=draw)

    def run(self, impl: Any) -> Tensor:
        cache = torch.zeros(8, NUM_KV_HEADS, BLOCK_SIZE, 2 * HEAD_DIM)
        if hasattr(impl, "prepare"):
            impl.prepare(cache)
        table = torch.tensor([[3, 1, 7, 5]], dtype=torch.int32)
        place = torch.arange(LENGTH)
        slots = table[0, place // BLOCK_SIZE].long() * BLOCK_SIZE + place % BLOCK_SIZE
        impl.do_kv_cache_update(None, self.keys, self.values, cache, slots)
        metadata = types.SimpleNamespace(
            block_table=table,
            query_start_loc=torch.tensor([0, QUERIES], dtype=torch.int32),
            seq_lens=torch.tensor([LENGTH], dtype=torch.int32),
            max_query_len=QUERIES,
            max_seq_len=LENGTH,
        )
        found: Tensor = impl.forward(None, self.query, None, None, cache, metadata, torch.empty_like(self.query))
        return found

    def expected(self, reference: Any, *numbers: Any) -> Tensor:
        found: Tensor = reference(self.query.double(), self.keys.double(), self.values.double(), SCALE, *numbers)
        return found


def skipped(window_tolerance: float) -> int:
    """KV blocks that a step leaves unread."""
    RECORD.take()
    Step().run(made(cpu.BiasImpl, Asked(alibi_slopes=SLOPES), window_tolerance=window_tolerance))
    return sum(RECORD.take().get("window_kv_blocks_skipped", {}).values())


def test_a_layer_with_slopes_attends_with_them() -> None:
    step, impl = Step(), made(cpu.BiasImpl, Asked(alibi_slopes=SLOPES), window_tolerance=0.0)
    expected = step.expected(alibi_attention, SLOPES)
    torch.testing.assert_close(step.run(impl).double(), expected, rtol=0, atol=ATTENTION_FLOAT32)


def test_a_layer_with_contextual_positions_attends_with_its_table() -> None:
    pos_emb = torch.randn(HEAD_DIM, 16, generator=torch.Generator().manual_seed(1))
    step, impl = Step(), made(cpu.CopeImpl, Asked(encoding="cope", cope=lambda: Cope(pos_emb, 1.0)))
    expected = step.expected(cope_attention_of_the_listing, pos_emb.double().T)
    RECORD.take()
    torch.testing.assert_close(step.run(impl).double(), expected, rtol=0, atol=ATTENTION_FLOAT32)
    # Gates are a half on the average: well before the hundredth key all rows stand at the sixteenth position.
    assert all(RECORD.take()["cope_walked"].values())


def test_a_window_is_as_wide_as_the_deployments_tolerance_says() -> None:
    impl = made(cpu.BiasImpl, Asked(alibi_slopes=SLOPES), window_tolerance=0.125)
    Step().run(impl)
    assert impl.window.tolerance == 0.125
    assert skipped(0.0) == 0 < skipped(1e-6) < skipped(0.125)


def test_a_bias_that_does_not_decay_has_no_window() -> None:
    impl = made(cpu.BiasImpl, Asked(), window_tolerance=0.125)
    Step().run(impl)
    assert impl.window is None

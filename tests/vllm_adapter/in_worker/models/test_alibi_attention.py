"""Which slopes reach the attention of a rank."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from posenc_runtime.vllm_adapter.in_worker.models import alibi_attention
from tests.references.alibi import alibi_slopes
from tests.tolerance import SOME_FLOAT32_OPERATIONS


class Made(nn.Module):
    """Stands in for vLLM's layers, and keeps what it was made with."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__()
        self.arguments, self.keywords = arguments, keywords


@pytest.mark.parametrize(("num_ranks", "rank"), [(1, 0), (2, 0), (2, 1), (4, 3)])
def test_a_rank_gets_the_slopes_of_its_own_heads_in_their_order(
    num_ranks: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Attention", "QKVParallelLinear", "RowParallelLinear"):
        monkeypatch.setattr(alibi_attention, name, Made)
    monkeypatch.setattr(alibi_attention, "get_tensor_model_parallel_world_size", lambda: num_ranks)
    monkeypatch.setattr(alibi_attention, "get_tensor_model_parallel_rank", lambda: rank)
    attn: Any = alibi_attention.AlibiAttention(5120, 40).attn
    of_rank = 40 // num_ranks
    expected = alibi_slopes(40)[rank * of_rank : (rank + 1) * of_rank]
    assert attn.arguments[0] == attn.keywords["num_kv_heads"] == of_rank
    assert attn.keywords["alibi_slopes"] == pytest.approx(expected, rel=SOME_FLOAT32_OPERATIONS)

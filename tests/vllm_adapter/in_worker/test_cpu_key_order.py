"""The order in which vLLM keeps keys on a CPU: told by its name, or by what it writes."""

from __future__ import annotations

import pytest
import torch
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

from posenc_runtime.vllm_adapter.in_worker import cpu_key_order
from posenc_runtime.vllm_adapter.in_worker.cpu_key_order import order_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_an_order_without_a_name_is_found_by_what_vllm_writes(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on other processors. Pairs have no other way to be told, so an order of theirs is none that is read."""
    isa = _get_attn_isa(dtype, 32, 64, "auto")
    named = order_of(2, 32, 64, dtype, isa)
    assert named == ("pairs" if isa == "amx" else "columns")
    monkeypatch.setattr(cpu_key_order, "_ORDERS", {})
    assert order_of(2, 32, 64, dtype, isa) == (None if isa == "amx" else "columns")

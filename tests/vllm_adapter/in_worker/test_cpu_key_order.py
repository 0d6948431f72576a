"""The order in which vLLM keeps keys on a CPU: told by its name, or by what it writes."""

from __future__ import annotations

import pytest
import torch
from vllm import _custom_ops
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


@pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="vLLM keeps float8 keys on a CPU with AVX-512 only")
@pytest.mark.parametrize("isa", ["vec", "amx"])
@pytest.mark.parametrize(
    ("name", "dtype", "bits", "smallest"),
    [("fp8", torch.float8_e4m3fn, 4, 2.0**-9), ("fp8_e5m2", torch.float8_e5m2, 3, 2.0**-16)],
    ids=["e4m3", "e5m2"],
)
def test_float8_keys_lie_where_vllm_writes_them(
    name: str, dtype: torch.dtype, bits: int, smallest: float, isa: str
) -> None:
    heads, block_size, head_dim, scale = 2, 32, 64, 0.05
    keys = torch.randn(block_size, heads, head_dim)
    cache = torch.zeros(1, heads, 2 * block_size, head_dim, dtype=torch.uint8)
    key_cache, value_cache = cache.chunk(2, dim=2)
    slots = torch.arange(block_size)
    _custom_ops.cpu_attn_reshape_and_cache(
        keys, keys, key_cache, value_cache, slots, isa, k_scale=scale, v_scale=scale, kv_cache_dtype=name
    )
    order = cpu_key_order.cpu_key_order(heads, block_size, head_dim, dtype, isa)
    found = key_cache[0].flatten(1).view(dtype).float()[:, order].view(heads, block_size, head_dim) * scale
    # vLLM's cast cuts off what an H100 rounds.
    allowed = 2.0 ** (1 - bits) * keys.abs() + scale * smallest
    assert ((found.transpose(0, 1) - keys).abs() <= allowed).all()

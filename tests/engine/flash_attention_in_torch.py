"""FlashAttention's functions in plain torch, under the names by which vLLM's backend imports them on CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def flash_attn_varlen_func(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    cu_seqlens_q: Tensor,
    seqused_k: Tensor,
    block_table: Tensor,
    softmax_scale: float,
    causal: bool = True,
    alibi_slopes: Tensor | None = None,
    softcap: float = 0,
    **settings: Any,
) -> Tensor:
    """Causal attention over a paged cache.

    Args:
        q, out: ``[num_tokens, num_heads, head_dim]``; ``q`` in float8 where the cache is.
        k, v: ``[num_blocks, block_size, num_kv_heads, head_dim]``.
    """
    assert causal is True and alibi_slopes is None and not softcap
    assert q.dtype == k.dtype == v.dtype
    if q.dtype.itemsize == 1:
        # One scale for a tensor, which vLLM expands to requests and KV heads.
        scales = (settings[f"{name}_descale"][0, 0] for name in "qkv")
        q, k, v = ((states.float() * scale).to(out.dtype) for states, scale in zip((q, k, v), scales, strict=True))
    begins = cu_seqlens_q.tolist()
    for request, length in enumerate(seqused_k.tolist()):
        rows = slice(begins[request], begins[request + 1])
        blocks = block_table[request, : -(-length // k.shape[1])]
        keys, values = (cache[blocks].flatten(0, 1)[:length].transpose(0, 1) for cache in (k, v))
        here = torch.arange(length - (rows.stop - rows.start), length)
        earlier = torch.arange(length) <= here[:, None]
        out[rows] = scaled_dot_product_attention(
            q[rows].transpose(0, 1), keys, values, earlier, scale=softmax_scale, enable_gqa=True
        ).transpose(0, 1)
    return out


def install() -> None:
    """Before vLLM's backend is imported."""
    from vllm.v1.attention.backends import fa_utils
    from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash

    functions = {
        "flash_attn_varlen_func": flash_attn_varlen_func,
        "reshape_and_cache_flash": triton_reshape_and_cache_flash,
        "compile_flash_attn_varlen_func_from_specs": None,
        "get_scheduler_metadata": lambda **_: None,
        "get_flash_attn_version": lambda *_, **__: 3,  # of Hopper
        "flash_attn_supports_kv_cache_dtype": lambda *_, **__: True,
        "flash_attn_supports_quant_query_input": lambda: True,
        "is_flash_attn_varlen_func_available": lambda: True,
    }
    for name, function in functions.items():
        setattr(fa_utils, name, function)

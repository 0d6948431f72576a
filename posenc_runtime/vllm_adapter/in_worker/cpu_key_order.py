"""Finds how vLLM's CPU backend packs the keys of a block: it writes keys whose values are their own places."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_runtime.kernels.cpu.layout import Order

# A type of a cache holds every whole number below its own of these exactly.
_DIGIT_BASE = {torch.float8_e4m3fn: 16, torch.float8_e5m2: 8}
_DIGIT_BASE_OF_OTHERS = 256  # bfloat16's, the narrowest of them
_NAMES = {torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8_e5m2"}  # vLLM's
# By the instructions that vLLM names. What it keeps with those of other processors depends on the data type, too.
_ORDERS: dict[str, Order] = {"vec": "columns", "vec16": "columns", "amx": "pairs"}


def cpu_key_order(num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype, isa: str) -> Tensor:
    """Where each element of a block's keys lies, for ``kernels.rotary.rerotation.KeyLayout``.

    The packing depends on the instruction set that vLLM chose, and vLLM does not document it. So vLLM writes one block
    whose elements are their own numbers, once for each digit of the numbers, and the block's memory shows the packing.

    Args:
        dtype: data type of the cache: float32, bfloat16, float16 or float8, which vLLM itself calls uint8.
        isa: what ``vllm.v1.attention.backends.cpu_attn._get_attn_isa`` gives for this cache.

    Returns:
        int64 ``[block_size * head_dim]``: of a head's keys, element ``(token, dim)`` lies at
        ``order[token * head_dim + dim]``.

    Raises:
        RuntimeError: when the packing is no permutation of a head's elements, or differs from head to head.
    """
    num_elements, base = block_size * head_dim, _DIGIT_BASE.get(dtype, _DIGIT_BASE_OF_OTHERS)
    numbers = torch.arange(num_elements).view(block_size, 1, head_dim)
    found = torch.zeros(num_kv_heads, num_elements, dtype=torch.int64)
    place_value = 1
    while place_value < num_elements:
        digits = (numbers // place_value % base).expand(-1, num_kv_heads, -1)
        found += _written(digits, dtype, isa).long() * place_value
        place_value *= base
    if not torch.equal(found[0].sort().values, torch.arange(num_elements)):
        raise RuntimeError(_refusal("is not a permutation of a head's elements", block_size, head_dim, dtype, isa))
    if not torch.equal(found, found[:1].expand_as(found)):
        raise RuntimeError(_refusal("differs from head to head", block_size, head_dim, dtype, isa))
    return found[0].argsort()


def order_of(num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype, isa: str) -> Order | None:
    """The order in which vLLM keeps a block's keys and values, if our attention reads it.

    Args:
        dtype: data type of the keys that vLLM is given, whatever the cache keeps.
        isa: as in ``cpu_key_order``.

    Returns:
        None for an order that no kernel of ours reads.
    """
    if isa in _ORDERS:
        return _ORDERS[isa]
    try:
        order = cpu_key_order(num_kv_heads, block_size, head_dim, dtype, isa).view(block_size, head_dim)
    except RuntimeError:
        return None
    columns = torch.arange(head_dim) * block_size + torch.arange(block_size)[:, None]
    # Wherever keys are columns, values are rows: all of vLLM's kernels keep them so.
    return "columns" if torch.equal(order, columns) else None


def _written(digits: Tensor, dtype: torch.dtype, isa: str) -> Tensor:
    """The keys of one block as the backend stores them, float32 ``[num_kv_heads, block_size * head_dim]``."""
    from vllm import _custom_ops

    block_size, num_kv_heads, head_dim = digits.shape
    # The second of two blocks, which shows the distance between blocks, too. NaN stays in elements that vLLM skips.
    cache = torch.full((2, num_kv_heads, 2 * block_size, head_dim), torch.nan).to(dtype)
    is_float8 = dtype in _NAMES
    # Keys of every model go into a float8 cache in the same order.
    keys = digits.to(torch.bfloat16 if is_float8 else dtype).contiguous()
    key_cache, value_cache = (cache.view(torch.uint8) if is_float8 else cache).chunk(2, dim=2)
    slots = torch.arange(block_size, 2 * block_size)
    scales = {"k_scale": 1.0, "v_scale": 1.0, "kv_cache_dtype": _NAMES[dtype]} if is_float8 else {}
    _custom_ops.cpu_attn_reshape_and_cache(keys, torch.zeros_like(keys), key_cache, value_cache, slots, isa, **scales)
    return cache.float().chunk(2, dim=2)[0][1].flatten(1)


def _refusal(what: str, block_size: int, head_dim: int, dtype: torch.dtype, isa: str) -> str:
    return (
        f"re-rotation needs keys whose elements are stored in one known order for all heads, but the order of vLLM's "
        f"CPU backend for isa {isa}, block_size {block_size}, head_dim {head_dim}, {dtype} {what}: set "
        "scaling.on_crossing to recompute or pin, and scaling.prefix_reuse to exact"
    )

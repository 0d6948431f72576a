"""Finds how vLLM's CPU backend packs the keys of a block: it writes keys whose values are their own places."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_runtime.kernels.cpu.layout import Order

# bfloat16, the narrowest type of a cache, holds every whole number below this one exactly.
_DIGIT_BASE = 256
# By the instructions that vLLM names. What it keeps with those of other processors depends on the data type, too.
_ORDERS: dict[str, Order] = {"vec": "columns", "vec16": "columns", "amx": "pairs"}


def cpu_key_order(num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype, isa: str) -> Tensor:
    """Where each element of a block's keys lies, for ``kernels.rotary.rerotation.KeyLayout``.

    The packing depends on the instruction set that vLLM chose, and vLLM does not document it. So vLLM writes one block
    whose elements are their own numbers, once for each digit of the numbers, and the block's memory shows the packing.

    Args:
        dtype: data type of the cache; unquantised.
        isa: what ``vllm.v1.attention.backends.cpu_attn._get_attn_isa`` gives for this cache.

    Returns:
        int64 ``[block_size * head_dim]``: of a head's keys, element ``(token, dim)`` lies at
        ``order[token * head_dim + dim]``.

    Raises:
        RuntimeError: when the packing is no permutation of a head's elements, or differs from head to head.
    """
    num_elements = block_size * head_dim
    numbers = torch.arange(num_elements).view(block_size, 1, head_dim)
    found = torch.zeros(num_kv_heads, num_elements, dtype=torch.int64)
    place_value = 1
    while place_value < num_elements:
        digits = (numbers // place_value % _DIGIT_BASE).to(dtype).expand(-1, num_kv_heads, -1).contiguous()
        found += _written(digits, isa).long() * place_value
        place_value *= _DIGIT_BASE
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


def _written(keys: Tensor, isa: str) -> Tensor:
    """The keys of one block as the backend stores them, ``[num_kv_heads, block_size * head_dim]``."""
    from vllm import _custom_ops

    block_size, num_kv_heads, head_dim = keys.shape
    # The second of two blocks, which shows the distance between blocks, too. NaN stays in elements that vLLM skips.
    cache = torch.full((2, num_kv_heads, 2 * block_size, head_dim), torch.nan, dtype=keys.dtype)
    key_cache, value_cache = cache.chunk(2, dim=2)
    slots = torch.arange(block_size, 2 * block_size)
    _custom_ops.cpu_attn_reshape_and_cache(keys, torch.zeros_like(keys), key_cache, value_cache, slots, isa)
    return key_cache[1].flatten(1)


def _refusal(what: str, block_size: int, head_dim: int, dtype: torch.dtype, isa: str) -> str:
    return (
        f"re-rotation needs keys whose elements are stored in one known order for all heads, but the order of vLLM's "
        f"CPU backend for isa {isa}, block_size {block_size}, head_dim {head_dim}, {dtype} {what}: set "
        "scaling.on_crossing to recompute or pin, and scaling.prefix_reuse to exact"
    )

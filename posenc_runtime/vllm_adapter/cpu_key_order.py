"""How vLLM's CPU backend packs the keys of a block: found by asking its own writer, not by knowing its layouts."""

from __future__ import annotations

import torch
from torch import Tensor

_BASE = 128  # the integers below it are exact in bfloat16


def cpu_key_order(*, block_size: int, head_dim: int, dtype: torch.dtype, isa: str) -> Tensor:
    """Where each element of a block's keys lies, for one head.

    Keys that spell the number of their element, digit by digit in small integers that every data type holds exactly,
    are written by vLLM's own kernel and read back.

    Args:
        isa: the instruction set that the backend chose for a layer.

    Returns:
        int64 ``[block_size * head_dim]``: element ``token * head_dim + dim`` lies at this offset of the head's keys.

    Raises:
        ValueError: when elements are not merely reordered.
    """
    from vllm import _custom_ops

    num_elements = block_size * head_dim
    number = torch.arange(num_elements).view(block_size, head_dim)
    slots = torch.arange(block_size, 2 * block_size, dtype=torch.int64)  # of block 1; block 0 is vLLM's placeholder
    read = torch.zeros(num_elements, dtype=torch.int64)
    weight = 1
    while weight < num_elements:
        keys = (number // weight % _BASE).to(dtype)[:, None].contiguous()
        cache = torch.zeros(2, 1, 2 * block_size, head_dim, dtype=dtype)
        key_cache, value_cache = cache.chunk(2, dim=2)
        _custom_ops.cpu_attn_reshape_and_cache(keys, torch.zeros_like(keys), key_cache, value_cache, slots, isa)
        read += key_cache[1, 0].flatten().to(torch.int64) * weight
        weight *= _BASE
    if not torch.equal(read.sort().values, torch.arange(num_elements)):
        raise ValueError(
            f"re-rotation needs keys that the CPU backend only reorders, but instruction set {isa} with {dtype}, "
            f"blocks of {block_size} and heads of {head_dim} does something else: set scaling.on_crossing to recompute "
            "or pin"
        )
    order = torch.empty_like(read)
    order[read] = torch.arange(num_elements)
    return order

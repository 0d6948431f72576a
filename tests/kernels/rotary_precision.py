"""Logits of queries and keys, as they are rotated into the cache and as float32 tables do, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales
from posenc_runtime.kernels.rotary.rotary_step import RotaryStep

HEAD_DIM, BLOCK_SIZE = 128, 16

# (query, key, value, kv_cache, positions, slot_mapping, scales), as ``ops.rotary_store``.
RotaryStore = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, RotaryScales], None]


def errors(
    rotary_store: RotaryStore,
    dtype: torch.dtype,
    first_position: int,
    num_tokens: int,
    device: torch.device | str = "cpu",
) -> tuple[float, float]:
    """Root mean squares, of what is cached and of float32 tables of float32 angles.

    Args:
        num_tokens: consecutive ones, a multiple of ``BLOCK_SIZE``: logits are taken between all their queries and keys.
    """
    generator = torch.Generator().manual_seed(17)
    query, key = torch.randn(2, num_tokens, 1, HEAD_DIM, generator=generator).to(device, dtype)
    inv_freq = 500_000 ** (torch.arange(HEAD_DIM // 2, dtype=torch.float64, device=device) * -2 / HEAD_DIM)
    position = torch.arange(first_position, first_position + num_tokens, device=device)
    angle = position[:, None].double() * inv_freq.float().double()
    exact = _logits(*(_rotated(heads[:, 0].double(), angle.cos(), angle.sin()) for heads in (query, key)))

    in_float32 = position[:, None].float() * inv_freq.float()
    tables = (_rotated(heads[:, 0].float(), in_float32.cos(), in_float32.sin()) for heads in (query, key))
    by_tables = _logits(*(heads.to(dtype) for heads in tables))

    num_blocks = num_tokens // BLOCK_SIZE
    cache = torch.zeros(num_blocks, 1, BLOCK_SIZE, 2 * HEAD_DIM, dtype=dtype, device=device)
    block_scale = torch.zeros(num_blocks, dtype=torch.int32, device=device)
    scales = RotaryScales.of([Frequencies(inv_freq)], block_scale, BLOCK_SIZE, True)
    slots = torch.arange(num_tokens, device=device)
    rotary_store(RotaryStep(query, key, key, cache, position, slots, scales))
    by_kernel = _logits(query[:, 0], cache[:, 0, :, :HEAD_DIM].flatten(0, 1))
    by_store, by_table = ((found - exact).square().mean().sqrt().item() for found in (by_kernel, by_tables))
    return by_store, by_table


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _logits(query: Tensor, key: Tensor) -> Tensor:
    """float64 ``[num_tokens, num_tokens]``."""
    return query.double() @ key.double().T / math.sqrt(HEAD_DIM)

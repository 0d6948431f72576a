"""The structures of paged.h, bias.cpp, cope.cpp and store.cpp, and the cache layout that these files share."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.cpu.build import DTYPES

TILE = 32  # keys

_INT = ctypes.c_int64
_POINTER = ctypes.c_void_p


class Paged(ctypes.Structure):
    """``Paged`` of paged.h: addresses, strides and sizes of a step's queries, output, cache and requests."""

    _fields_ = (
        *((name, _POINTER) for name in ("query", "out", "cache", "block_table", "query_start_loc", "seq_lens")),
        *((name, _INT) for name in ("query_stride_token", "query_stride_head", "out_stride_token", "out_stride_head")),
        *((name, _INT) for name in ("cache_stride_block", "cache_stride_head", "table_stride", "num_requests")),
        *((name, _INT) for name in ("num_heads", "num_kv_heads", "head_dim", "block_size")),
        ("scale", ctypes.c_float),
    )


class Bias(ctypes.Structure):
    """``Bias`` of bias.cpp: slopes, a table, or neither for no bias, and the window if there is one."""

    _fields_ = (
        ("slopes", _POINTER),
        ("table", _POINTER),
        ("table_length", _INT),
        ("key_norms", _POINTER),
        ("counts", _POINTER),
        ("tolerance", ctypes.c_float),
        ("rounding", ctypes.c_float),
    )


class Cope(ctypes.Structure):
    """``Cope`` of cope.cpp: a layer's table, padded to ``width`` positions, and the counters of visited keys."""

    _fields_ = (
        ("pos_emb", _POINTER),
        ("npos", _INT),
        ("width", _INT),
        ("qe_scale", ctypes.c_float),
        ("counts", _POINTER),
    )


class New(ctypes.Structure):
    """``New`` of store.cpp: addresses, strides and sizes of a step's keys and values, their slots, and the cache."""

    _fields_ = (
        *((name, _POINTER) for name in ("keys", "values", "cache", "slot_mapping", "key_norms")),
        *((name, _INT) for name in ("key_stride_token", "key_stride_head", "value_stride_token", "value_stride_head")),
        *((name, _INT) for name in ("cache_stride_block", "cache_stride_head", "num_slots", "num_kv_heads")),
        *((name, _INT) for name in ("head_dim", "block_size")),
    )


def keys_and_values(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Views of a layer's cache in the shape that the references take.

    Args:
        cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``. The memory of each head of a block has two
            halves. The first holds the keys, ``[head_dim, block_size]``, so that the scores of 32 keys are sums of
            vectors. The second holds the values, ``[block_size, head_dim]``.

    Returns:
        Keys and values, ``[num_blocks, num_kv_heads, block_size, head_dim]`` each.
    """
    num_blocks, num_kv_heads, block_size, twice = cache.shape
    keys, values = cache.view(num_blocks, num_kv_heads, 2, -1).unbind(2)
    halves = (num_blocks, num_kv_heads)
    return keys.view(*halves, twice // 2, block_size).transpose(2, 3), values.view(*halves, block_size, twice // 2)


def check_cache(cache: Tensor) -> None:
    """Check the data type, the sizes and the strides of a layer's cache.

    Raises:
        ValueError: when the kernels cannot read the cache.
    """
    block_size, twice = cache.shape[2:]
    if cache.dtype not in DTYPES:
        raise ValueError(f"the CPU attention kernels read float32, bfloat16 and float16, got {cache.dtype}")
    if block_size % TILE:
        raise ValueError(f"block_size must be a multiple of {TILE} for the CPU attention kernels, got {block_size}")
    if twice // 2 % 16:
        raise ValueError(f"head_dim must be a multiple of 16 for the CPU attention kernels, got {twice // 2}")
    if cache.stride()[2:] != (twice, 1):
        raise ValueError(f"each head of a block must be contiguous, got strides {cache.stride()}")


def paged(query: Tensor, cache: Tensor, batch: PagedBatch, scale: float, out: Tensor) -> Paged:
    """The structure that all attention kernels take. The tensors must outlive the kernel's call.

    Raises:
        ValueError: when the kernels cannot read a tensor.
    """
    check_cache(cache)
    for name, tensor in (("query", query), ("out", out)):
        if tensor.dtype != cache.dtype or tensor.stride(-1) != 1:
            raise ValueError(
                f"{name} must be {cache.dtype} as the cache is, with contiguous heads, got {tensor.dtype} and strides "
                f"{tensor.stride()}"
            )
    for name in ("block_table", "query_start_loc", "seq_lens"):
        tensor = getattr(batch, name)
        if tensor.dtype != torch.int32 or tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be int32 and contiguous, got {tensor.dtype} and strides {tensor.stride()}")
    _, num_kv_heads, block_size, twice = cache.shape
    return Paged(
        query.data_ptr(),
        out.data_ptr(),
        cache.data_ptr(),
        batch.block_table.data_ptr(),
        batch.query_start_loc.data_ptr(),
        batch.seq_lens.data_ptr(),
        *query.stride()[:2],
        *out.stride()[:2],
        *cache.stride()[:2],
        batch.block_table.stride(0),
        len(batch),
        query.shape[1],
        num_kv_heads,
        twice // 2,
        block_size,
        scale,
    )

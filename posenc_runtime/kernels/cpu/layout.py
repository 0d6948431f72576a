"""The structures of paged.h, bias.cpp, cope.cpp, read_time.cpp and store.cpp, and the cache layout that they share."""

from __future__ import annotations

import ctypes
from typing import Literal

import torch
from torch import Tensor

from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.cpu.build import DTYPES

TILE = 32  # keys

# In which order a block's numbers lie: keys in columns and values in rows, or in pairs for AMX (pairs.h).
Order = Literal["columns", "pairs"]

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


class ReadTime(ctypes.Structure):
    """``ReadTime`` of read_time.cpp: a layer's pages, the turns of its queries, and what it does to logits."""

    _fields_ = (
        *((name, _POINTER) for name in ("phases", "sinks", "k_scales", "v_scales")),
        *((name, _INT) for name in ("num_pairs", "is_neox_style", "trained_length", "page", "edge", "distance")),
        *((name, _INT) for name in ("leaks_from", "bounded_from", "temperature")),
        ("tempered_from", ctypes.c_double),
        ("soft_cap", ctypes.c_float),
        ("may_use_tiles", ctypes.c_int32),
    )


class New(ctypes.Structure):
    """``New`` of store.cpp: addresses, strides and sizes of a step's keys and values, their slots, and the cache."""

    _fields_ = (
        *((name, _POINTER) for name in ("keys", "values", "cache", "slot_mapping", "key_norms")),
        *((name, _INT) for name in ("key_stride_token", "key_stride_head", "value_stride_token", "value_stride_head")),
        *((name, _INT) for name in ("cache_stride_block", "cache_stride_head", "num_slots", "num_kv_heads")),
        *((name, _INT) for name in ("head_dim", "block_size")),
    )


def keys_and_values(cache: Tensor, order: Order = "columns") -> tuple[Tensor, Tensor]:
    """Views of a layer's cache in the shape that the references take.

    Args:
        cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``. The memory of each head of a block has two
            halves. In columns, the first holds the keys, ``[head_dim, block_size]``, so that the scores of 32 keys are
            sums of vectors. The second holds the values, ``[block_size, head_dim]``.

    Returns:
        Keys and values, ``[num_blocks, num_kv_heads, block_size, head_dim]`` each. Of pairs the shape only has the
        sizes: pairs.h says which number lies where in a head of a block.
    """
    num_blocks, num_kv_heads, block_size, twice = cache.shape
    keys, values = cache.view(num_blocks, num_kv_heads, 2, block_size, twice // 2).unbind(2)
    if order == "columns":
        keys = keys.view(num_blocks, num_kv_heads, twice // 2, block_size).transpose(2, 3)
    return keys, values


def check_cache(cache: Tensor) -> None:
    """Check the data type, the sizes and the strides of a layer's cache.

    Raises:
        ValueError: when the kernels cannot read the cache.
    """
    block_size, twice = cache.shape[2:]
    if cache.dtype not in DTYPES:
        raise ValueError(f"the CPU attention kernels read float32, bfloat16 and float16, got {cache.dtype}")
    _check_sizes(block_size, twice // 2)
    if cache.stride()[2:] != (twice, 1):
        raise ValueError(f"each head of a block must be contiguous, got strides {cache.stride()}")


def are_halves(key_cache: Tensor, value_cache: Tensor, order: Order = "columns") -> bool:
    """Whether two tensors are what ``keys_and_values`` makes of a layer's cache."""
    block_size, head_dim = key_cache.shape[2:]
    between = block_size * head_dim * key_cache.element_size()
    within = (1, block_size) if order == "columns" else (head_dim, 1)
    return (
        key_cache.stride() == (*value_cache.stride()[:2], *within)
        and value_cache.stride()[2:] == (head_dim, 1)
        and value_cache.data_ptr() - key_cache.data_ptr() == between
    )


def _check_sizes(block_size: int, head_dim: int) -> None:
    if block_size % TILE:
        raise ValueError(f"block_size must be a multiple of {TILE} for the CPU attention kernels, got {block_size}")
    if head_dim % 16:
        raise ValueError(f"head_dim must be a multiple of 16 for the CPU attention kernels, got {head_dim}")


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
    return _paged(query, cache, batch, scale, out)


def paged_of_halves(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    scale: float,
    out: Tensor,
    order: Order = "columns",
) -> Paged:
    """The same structure from the views that ``keys_and_values`` makes; data types are the caller's to check.

    Raises:
        ValueError: when the caches are not such views, or the kernels cannot read a tensor.
    """
    if not are_halves(key_cache, value_cache, order):
        raise ValueError(
            "key_cache and value_cache must be the halves of one cache that layout.keys_and_values makes, got strides "
            f"{key_cache.stride()} and {value_cache.stride()}"
        )
    block_size, head_dim = key_cache.shape[2:]
    _check_sizes(block_size, head_dim)
    if order == "pairs" and head_dim % 32:
        raise ValueError(f"head_dim must be a multiple of 32 for keys in AMX's order, got {head_dim}")
    for name, tensor in (("query", query), ("out", out)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} must have contiguous heads, got strides {tensor.stride()}")
    return _paged(query, key_cache, batch, scale, out)


def _paged(query: Tensor, cache: Tensor, batch: PagedBatch, scale: float, out: Tensor) -> Paged:
    """From a cache, or its keys: both begin at one address, and have the same strides of blocks and heads."""
    for name in ("block_table", "query_start_loc", "seq_lens"):
        tensor = getattr(batch, name)
        if tensor.dtype != torch.int32 or tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be int32 and contiguous, got {tensor.dtype} and strides {tensor.stride()}")
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
        cache.shape[1],
        query.shape[2],
        cache.shape[2],
        scale,
    )

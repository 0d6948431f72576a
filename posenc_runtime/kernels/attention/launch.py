"""What the launches of all attention kernels share: checks, and the arguments for layouts and strides."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from posenc_runtime.kernels.attention.heads import check_heads, row_bytes, row_dim
from posenc_runtime.kernels.attention.paged import PagedBatch

_NARROW_BYTES = 256  # a key or value of at most this size is narrow
# Triton divides the stages of a loop between loads and the loads of their addresses. With the usual three, a tile of
# keys has one stage: it is loaded only when the tile before has been used. With five, keys and addresses have two each,
# and the next tile arrives while one is used. Decision 46.
_STAGES, _STAGES_OF_WIDEST = 5, 3
# The results of ``arguments`` by kind of tensors. An engine has a few kinds.
_FOUND: dict[tuple[object, ...], dict[str, int]] = {}
_MOST_FOUND = 64


def check(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    out: Tensor,
    *,
    eight_bits: bool = False,
) -> None:
    """Refuse tensors for which the kernels would give wrong results.

    Args:
        eight_bits: whether the kernels read caches in 8 bits, too. Their data type is then the caller's to check.

    Raises:
        ValueError: when data types or the strides of the caches differ, heads do not fit into a tile
            (``check_heads``), rows are not contiguous, or the batch's tensors are not int32.
    """
    check_heads(query.shape[1], key_cache.shape[1], query.shape[2], query.dtype)
    if {key_cache.dtype, value_cache.dtype} != {query.dtype} and not eight_bits:
        raise ValueError(
            f"queries, keys and values must be of one data type, got {query.dtype}, {key_cache.dtype} and "
            f"{value_cache.dtype}"
        )
    if key_cache.stride() != value_cache.stride():
        raise ValueError(
            f"keys and values must have the same strides, got {key_cache.stride()} and {value_cache.stride()}"
        )
    strides = [tensor.stride(-1) for tensor in (query, key_cache, value_cache, out, batch.block_table)]
    if any(stride != 1 for stride in strides):
        raise ValueError(f"the last stride must be 1 for queries, keys, values, out and block_table, got {strides}")
    of_requests = (batch.block_table, batch.query_start_loc, batch.seq_lens)
    if any(tensor.dtype != torch.int32 for tensor in of_requests):
        raise ValueError(
            f"block_table, query_start_loc and seq_lens must be int32, got {[tensor.dtype for tensor in of_requests]}"
        )


def width(head_dim: int, dtype: torch.dtype) -> int:
    """What the sizes of tiles are divided by, because wide heads take more registers and shared memory."""
    return max(1, row_bytes(head_dim, dtype) // _NARROW_BYTES)


def stages(head_dim: int, dtype: torch.dtype) -> int:
    """Stages of the loop over a lone query's keys. Shared memory does not hold two tiles of the widest heads."""
    return _STAGES if width(head_dim, dtype) <= 2 else _STAGES_OF_WIDEST


def arguments(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    out: Tensor,
    *,
    eight_bits: bool = False,
) -> dict[str, Any]:
    """The kernel arguments for the requests, the shapes of heads and blocks, and the strides, in elements.

    Every layer asks for them in every step, so the results of ``check`` and the strides are kept by the kind of the
    tensors. Decision 49.

    Args:
        eight_bits: see ``check``.

    Raises:
        ValueError: see ``check``.
    """
    table = batch.block_table
    like = (
        *(query.dtype, query.shape[1:], query.stride(), out.stride()),
        *(key_cache.dtype, key_cache.shape[1:], key_cache.stride(), value_cache.dtype, value_cache.stride()),
        eight_bits,
        *(table.dtype, table.stride(), batch.query_start_loc.dtype, batch.seq_lens.dtype),
    )
    found = _FOUND.get(like)
    if found is None:
        check(query, key_cache, value_cache, batch, out, eight_bits=eight_bits)
        if len(_FOUND) >= _MOST_FOUND:
            _FOUND.clear()
        found = _FOUND[like] = _layout(query, key_cache, table)
    return found | {
        "p_query_start_loc": batch.query_start_loc,
        "p_seq_lens": batch.seq_lens,
        "p_block_table": table,
    }


def _layout(query: Tensor, cache: Tensor, block_table: Tensor) -> dict[str, int]:
    stride_block, stride_head, stride_token, _ = cache.stride()
    return {
        "stride_table": block_table.stride(0),
        "stride_cache_block": stride_block,
        "stride_cache_head": stride_head,
        "stride_cache_token": stride_token,
        "stride_query_token": query.stride(0),
        "stride_query_head": query.stride(1),
        "GROUP": query.shape[1] // cache.shape[1],
        "HEAD_DIM": query.shape[2],
        "BLOCK_SIZE": cache.shape[2],
        "BD": row_dim(query.shape[2]),
    }


def in_base_2(factor: float) -> float:
    """A factor of logits, for exponentials in base 2. Computed here, so that kernels need not round it again."""
    return factor * math.log2(math.e)

"""Triton: which keys a step's queries have to read, by the bound of ``window``, decided before any is read."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels import chunks
from posenc_runtime.kernels.bias_forms import load_form, reach
from posenc_runtime.kernels.chunks import chunk_size
from posenc_runtime.kernels.paged import PagedBatch
from posenc_runtime.kernels.paged_tiles import load_queries, offsets_of_keys
from posenc_runtime.kernels.window import ROUNDING, Window

_BLOCKS = 256  # whose norms a warp reads at a time
# One request of 131,072 tokens then waits twice for a block's number and its norm. Where programs are more than an H100
# has room for at once, they wait for memory beside each other, and a few warps to each are enough.
_FEW_PROGRAMS, _WARPS_OF_FEW, _WARPS = 396, 16, 4


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a window leaves a step to read: the chunks of lone queries, and the norms that decide it for others.

    Attributes:
        largest_norms: float32 ``[num_requests, num_kv_heads]``, of all keys of a request.
        first_keys: int32 ``[num_requests, num_kv_heads]``, where a lone query begins to read: a multiple of
            ``chunks.TILE``. Not written for other requests.
        work: int32, the chunks to read, as ``(request * num_kv_heads + kv_head) * MAX_CHUNKS + chunk``.
        num_items: int32 ``[1]``, how many stand there: the window's, see there.
    """

    largest_norms: Tensor
    first_keys: Tensor
    work: Tensor
    num_items: Tensor


@triton.jit
def first_keys(  # type: ignore[no-untyped-def]
    b_query, b_own, b_position, b_largest_norm, b_slope, b_shape, scale, log_tolerance, ROUNDING, FORM: tl.constexpr
):
    """The first key that each row has to read: see ``window.first_keys``. int32 ``[BM]``, never past the own key.

    Args:
        b_query, b_own: rows and their own keys ``[BM, BD]``.
        b_position: of each row in its request ``[BM]``.
        b_largest_norm: of the keys of the rows' request.
    """
    b_query = b_query.to(tl.float32)
    b_own_logit = tl.sum(b_query * b_own.to(tl.float32), 1) * scale
    b_norm = tl.sqrt(tl.sum(b_query * b_query, 1))
    b_needed = tl.log((b_position + 1).to(tl.float32)) - log_tolerance + ROUNDING
    b_reach = reach(tl.abs(scale) * b_norm * b_largest_norm - b_own_logit + b_needed, b_slope, b_shape, FORM)
    return tl.minimum(tl.maximum(b_position - tl.floor(b_reach).to(tl.int32), 0), b_position)


@triton.jit
def count_blocks(p_counts, first_key, last_key, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Count the blocks that hold keys ``first_key`` to ``last_key`` as read, and the ones before as skipped."""
    skipped = first_key // BLOCK_SIZE
    tl.atomic_add(p_counts, (last_key // BLOCK_SIZE + 1 - skipped).to(tl.int64), sem="relaxed")
    tl.atomic_add(p_counts + 1, skipped.to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["scale", "log_tolerance"])
def _plan_kernel(  # type: ignore[no-untyped-def]
    p_query,
    p_keys,
    p_norms,
    p_slope,
    p_shape,
    p_table,
    p_counts,
    p_largest_norms,
    p_first_keys,
    p_work,
    p_num_items,
    p_query_start_loc,
    p_seq_lens,
    p_block_table,
    scale,
    log_tolerance,
    stride_table,
    stride_query_token,
    stride_query_head,
    stride_cache_block,
    stride_cache_head,
    stride_cache_token,
    stride_norm_block,
    stride_norm_head,
    FORM: tl.constexpr,
    TABLE_LENGTH: tl.constexpr,
    ROUNDING: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    BLOCKS: tl.constexpr,
    BM: tl.constexpr,  # at least GROUP
    BD: tl.constexpr,
):
    i_request = tl.program_id(0)
    i_kv_head = tl.program_id(1)
    query = tl.load(p_query_start_loc + i_request)
    num_queries = tl.load(p_query_start_loc + i_request + 1) - query
    if num_queries == 0:
        return
    seq_len = tl.load(p_seq_lens + i_request)
    last = seq_len - 1
    p_table_row = p_block_table + i_request.to(tl.int64) * stride_table
    p_norms += i_kv_head.to(tl.int64) * stride_norm_head

    # This waits for memory and for little else. A lone query's own rows are on their way while norms are read.
    o_row = tl.arange(0, BM)
    m_row = o_row < GROUP
    o_head = i_kv_head * GROUP + tl.minimum(o_row, GROUP - 1)
    b_slope, b_shape = load_form(p_slope, p_shape, o_head, FORM)
    b_query = load_queries(p_query, query, o_head, m_row, stride_query_token, stride_query_head, HEAD_DIM, BD)
    own_block = tl.load(p_table_row + last // BLOCK_SIZE)
    o_own = offsets_of_keys(own_block, last, stride_cache_block, stride_cache_token, BLOCK_SIZE)
    o_dim = tl.arange(0, BD)
    p_own = p_keys + o_own + i_kv_head.to(tl.int64) * stride_cache_head
    b_own = tl.load(p_own + o_dim, mask=o_dim < HEAD_DIM, other=0.0)[None, :]

    b_largest = tl.zeros([BLOCKS], tl.float32)
    for first_block in range(0, last // BLOCK_SIZE + 1, BLOCKS):
        o_block = first_block + tl.arange(0, BLOCKS)
        m_block = o_block <= last // BLOCK_SIZE
        b_block = tl.load(p_table_row + o_block, mask=m_block, other=0).to(tl.int64)
        tl.debug_barrier()  # keeps the compiler from waiting for each block's number and norm in turn
        o_slot = tl.minimum(last - o_block * BLOCK_SIZE, BLOCK_SIZE - 1)
        b_norm = tl.load(p_norms + b_block * stride_norm_block + o_slot, mask=m_block, other=0.0)
        b_largest = tl.maximum(b_largest, b_norm)
    largest_norm = tl.max(b_largest, 0)
    i_pair = i_request * tl.num_programs(1) + i_kv_head
    tl.store(p_largest_norms + i_pair, largest_norm)

    if num_queries == 1:
        b_position = last + o_row * 0
        b_first = first_keys(
            b_query, b_own, b_position, largest_norm, b_slope, b_shape, scale, log_tolerance, ROUNDING, FORM
        )
        first = tl.min(tl.where(m_row, b_first, last), 0) // TILE * TILE
        tl.store(p_first_keys + i_pair, first)
        count_blocks(p_counts, first, last, BLOCK_SIZE)
        num_chunks = tl.cdiv(seq_len - first, chunk_size(seq_len - first, MAX_CHUNKS, MIN_CHUNK, TILE))
        o_item = tl.atomic_add(p_num_items, num_chunks, sem="relaxed")
        o_chunk = tl.arange(0, MAX_CHUNKS)
        tl.store(p_work + o_item + o_chunk, i_pair * MAX_CHUNKS + o_chunk, mask=o_chunk < num_chunks)


def window_arguments(window: Window) -> dict[str, Any]:
    return {"p_counts": window.counts, "log_tolerance": math.log(window.tolerance), "ROUNDING": ROUNDING}


def plan(
    query: Tensor, key_cache: Tensor, batch: PagedBatch, scale: float, window: Window, arguments: dict[str, Any]
) -> Plan:
    """Find how far back each request reads, and list its chunks if it has one query. Counts the blocks of those.

    Args:
        arguments: of the form, the layout and the queries' strides.
    """
    pairs = (len(batch), key_cache.shape[1])
    most_items = pairs[0] * pairs[1] * chunks.room(batch, chunks.MAX_CHUNKS)
    num_warps = _WARPS_OF_FEW if pairs[0] * pairs[1] <= _FEW_PROGRAMS else _WARPS
    found = Plan(
        torch.empty(pairs, dtype=torch.float32, device=query.device),
        torch.empty(pairs, dtype=torch.int32, device=query.device),
        torch.empty(most_items, dtype=torch.int32, device=query.device),
        window.num_items,
    )
    _plan_kernel[pairs](
        p_query=query,
        p_keys=key_cache,
        p_norms=window.key_norms,
        p_largest_norms=found.largest_norms,
        p_first_keys=found.first_keys,
        p_work=found.work,
        p_num_items=found.num_items,
        scale=scale,
        stride_norm_block=window.key_norms.stride(0),
        stride_norm_head=window.key_norms.stride(1),
        BLOCKS=_BLOCKS * num_warps,
        num_warps=num_warps,
        BM=triton.next_power_of_2(arguments["GROUP"]),
        **arguments,
        **window_arguments(window),
        **chunks.sizes(chunks.MAX_CHUNKS),
    )
    return found

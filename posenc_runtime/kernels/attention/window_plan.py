"""Triton: decides by the bound of ``window`` which keys a step's queries have to read, before any key is read."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels.attention import chunks
from posenc_runtime.kernels.attention.bias_forms import load_form, reach
from posenc_runtime.kernels.attention.chunks import chunk_size
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.paged_tiles import load_queries, load_rows, offsets_of_keys
from posenc_runtime.kernels.attention.window import ROUNDING, Window

_HEADS = 4  # the most KV heads of a program: one access of 16 bytes reads four norms of a block
_ROWS = 32  # the most query heads of a program, unless it has a single KV head
# The most blocks, and the most norms, that a warp reads at a time: few enough to stay in registers.
_BLOCKS, _NORMS = 256, 512
# With 16 warps, a program waits for memory five times for a request of 131,072 tokens and four KV heads. If there are
# more programs than an H100 runs at once, many of them wait at the same time, and four warps for each are enough.
_FEW_PROGRAMS, _WARPS_OF_FEW, _WARPS = 264, 16, 4


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a step has to read with a window: chunks for requests of one query, largest norms for the other requests.

    Attributes:
        largest_norms: float32 ``[num_requests, num_kv_heads]``, the largest norm of a request's keys.
        first_keys: int32 ``[num_requests, num_kv_heads]``, the first key that a request of one query reads, a multiple
            of ``chunks.TILE``. Not written for other requests.
        work: int32, the chunks to read, each as ``(request * num_kv_heads + kv_head) * MAX_CHUNKS + chunk``.
        num_items: int32 ``[1]``, the number of entries in ``work``; the tensor is ``Window.num_items``.
    """

    largest_norms: Tensor
    first_keys: Tensor
    work: Tensor
    num_items: Tensor


@triton.jit
def first_keys(  # type: ignore[no-untyped-def]
    b_query, b_own, b_position, b_largest_norm, b_slope, b_shape, scale, log_tolerance, ROUNDING, FORM: tl.constexpr
):
    """The first key that each row has to read, int32 ``[BM]``: see ``window.first_keys``. Never after the own key.

    Args:
        b_query, b_own: the rows, and the key of each row's own token, ``[BM, BD]``.
        b_position: position of each row in its request ``[BM]``.
        b_largest_norm: largest norm of the keys of the rows' request.
    """
    b_query = b_query.to(tl.float32)
    b_own_logit = tl.sum(b_query * b_own.to(tl.float32), 1) * scale
    b_norm = tl.sqrt(tl.sum(b_query * b_query, 1))
    b_needed = tl.log((b_position + 1).to(tl.float32)) - log_tolerance + ROUNDING
    b_reach = reach(tl.abs(scale) * b_norm * b_largest_norm - b_own_logit + b_needed, b_slope, b_shape, FORM)
    return tl.minimum(tl.maximum(b_position - tl.floor(b_reach).to(tl.int32), 0), b_position)


@triton.jit
def blocks_of_window(first_key, last_key, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The number of blocks that hold keys ``first_key`` to ``last_key``, and the number of blocks before them."""
    skipped = first_key // BLOCK_SIZE
    return last_key // BLOCK_SIZE + 1 - skipped, skipped


@triton.jit
def count_blocks(p_counts, read, skipped):  # type: ignore[no-untyped-def]
    tl.atomic_add(p_counts, read.to(tl.int64), sem="relaxed")
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
    stride_norm_slot,
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
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,  # KV heads of a program
    ALIGNED: tl.constexpr,  # whether the norms of HEADS heads always begin at a multiple of HEADS
    BG: tl.constexpr,  # rows of each KV head, at least GROUP
    BD: tl.constexpr,
):
    i_request = tl.program_id(1)
    query = tl.load(p_query_start_loc + i_request)
    num_queries = tl.load(p_query_start_loc + i_request + 1) - query
    if num_queries == 0:
        return
    seq_len = tl.load(p_seq_lens + i_request)
    last = seq_len - 1
    p_table_row = p_block_table + i_request.to(tl.int64) * stride_table
    o_kv_head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
    m_kv_head = o_kv_head < NUM_KV_HEADS

    # The kernel mostly waits for memory. So a lone query's rows are loaded here, while norms are read.
    o_row = tl.arange(0, HEADS * BG)
    o_row_kv_head = tl.program_id(0) * HEADS + o_row // BG
    m_row = (o_row % BG < GROUP) & (o_row_kv_head < NUM_KV_HEADS)
    o_row_kv_head = tl.minimum(o_row_kv_head, NUM_KV_HEADS - 1)
    o_head = o_row_kv_head * GROUP + tl.minimum(o_row % BG, GROUP - 1)
    b_slope, b_shape = load_form(p_slope, p_shape, o_head, FORM)
    b_query = load_queries(p_query, query, o_head, m_row, stride_query_token, stride_query_head, HEAD_DIM, BD)
    own_block = tl.load(p_table_row + last // BLOCK_SIZE)
    o_own = offsets_of_keys(own_block, last, stride_cache_block, stride_cache_token, BLOCK_SIZE)
    b_own = load_rows(p_keys + o_own + o_row_kv_head.to(tl.int64) * stride_cache_head, m_row, HEAD_DIM, BD)

    num_blocks = last // BLOCK_SIZE + 1
    b_largest = tl.zeros([BLOCKS, HEADS], tl.float32)
    o_block = tl.arange(0, BLOCKS)
    b_block = tl.load(p_table_row + o_block, mask=o_block < num_blocks, other=0).to(tl.int64)
    for first_block in range(0, num_blocks, BLOCKS):
        o_block = first_block + tl.arange(0, BLOCKS)
        m_next = o_block + BLOCKS < num_blocks
        b_next = tl.load(p_table_row + o_block + BLOCKS, mask=m_next, other=0).to(tl.int64)
        tl.debug_barrier()  # keeps the compiler from moving the load of the next blocks' numbers behind the norms'
        o_slot = tl.minimum(last - o_block * BLOCK_SIZE, BLOCK_SIZE - 1)
        o_norm = b_block * stride_norm_block + o_slot * stride_norm_slot
        if ALIGNED:
            o_norm = tl.multiple_of(o_norm, HEADS)
        m_norm = (o_block < num_blocks)[:, None] & m_kv_head[None, :]
        p_norm = p_norms + o_norm[:, None] + (o_kv_head * stride_norm_head)[None, :]
        b_norm = tl.load(p_norm, mask=m_norm, other=0.0)
        b_largest = tl.maximum(b_largest, b_norm)
        b_block = b_next
    b_largest_norm = tl.max(b_largest, 0)  # [HEADS]
    o_pair = i_request * NUM_KV_HEADS + o_kv_head
    tl.store(p_largest_norms + o_pair, b_largest_norm, mask=m_kv_head)

    if num_queries == 1:
        b_of_row = tl.reshape(tl.broadcast_to(b_largest_norm[:, None], [HEADS, BG]), [HEADS * BG])
        b_position = last + o_row * 0
        b_first = first_keys(
            b_query, b_own, b_position, b_of_row, b_slope, b_shape, scale, log_tolerance, ROUNDING, FORM
        )
        b_first = tl.min(tl.reshape(tl.where(m_row, b_first, last), [HEADS, BG]), 1) // TILE * TILE
        tl.store(p_first_keys + o_pair, b_first, mask=m_kv_head)
        b_read, b_skipped = blocks_of_window(b_first, last, BLOCK_SIZE)
        count_blocks(p_counts, tl.sum(tl.where(m_kv_head, b_read, 0)), tl.sum(tl.where(m_kv_head, b_skipped, 0)))
        b_chunks = tl.cdiv(seq_len - b_first, chunk_size(seq_len - b_first, MAX_CHUNKS, MIN_CHUNK, TILE))
        b_chunks = tl.where(m_kv_head, b_chunks, 0)
        b_item = tl.atomic_add(p_num_items, tl.sum(b_chunks, 0), sem="relaxed") + tl.cumsum(b_chunks, 0) - b_chunks
        o_chunk = tl.arange(0, MAX_CHUNKS)[None, :]
        b_work = o_pair[:, None] * MAX_CHUNKS + o_chunk
        tl.store(p_work + b_item[:, None] + o_chunk, b_work, mask=o_chunk < b_chunks[:, None])


def window_arguments(window: Window) -> dict[str, Any]:
    return {"p_counts": window.counts, "log_tolerance": math.log(window.tolerance), "ROUNDING": ROUNDING}


def plan(
    query: Tensor, key_cache: Tensor, batch: PagedBatch, scale: float, window: Window, arguments: dict[str, Any]
) -> Plan:
    """Find how far back each request reads, and list the chunks of requests with one query and count their blocks.

    Args:
        arguments: the kernel arguments for the form, the layout and the queries' strides.
    """
    num_kv_heads = key_cache.shape[1]
    pairs = (len(batch), num_kv_heads)
    programs, constants = _constants(len(batch), num_kv_heads, arguments["GROUP"], window.key_norms.stride())
    found = Plan(
        torch.empty(pairs, dtype=torch.float32, device=query.device),
        torch.empty(pairs, dtype=torch.int32, device=query.device),
        torch.empty(
            len(batch) * num_kv_heads * chunks.room(batch, chunks.MAX_CHUNKS), dtype=torch.int32, device=query.device
        ),
        window.num_items,
    )
    _plan_kernel[programs](
        p_query=query,
        p_keys=key_cache,
        p_norms=window.key_norms,
        p_largest_norms=found.largest_norms,
        p_first_keys=found.first_keys,
        p_work=found.work,
        p_num_items=found.num_items,
        scale=scale,
        **constants,
        **arguments,
        **window_arguments(window),
        **chunks.sizes(chunks.MAX_CHUNKS),
    )
    return found


@functools.lru_cache(maxsize=1024)
def _constants(
    num_requests: int, num_kv_heads: int, group: int, norm_strides: tuple[int, ...]
) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid of programs, and the kernel arguments that follow from the grid and from the strides of the norms."""
    rows = triton.next_power_of_2(group)
    heads = min(_HEADS, triton.next_power_of_2(num_kv_heads), max(1, _ROWS // rows))
    programs = (triton.cdiv(num_kv_heads, heads), num_requests)
    num_warps = _WARPS_OF_FEW if programs[0] * programs[1] <= _FEW_PROGRAMS else _WARPS
    stride_block, stride_head, stride_slot = norm_strides
    return programs, {
        "stride_norm_block": stride_block,
        "stride_norm_head": stride_head,
        "stride_norm_slot": stride_slot,
        "BLOCKS": min(_BLOCKS, _NORMS // heads) * num_warps,
        "NUM_KV_HEADS": num_kv_heads,
        "HEADS": heads,
        "ALIGNED": stride_block % heads == stride_slot % heads == 0,
        "BG": rows,
        "num_warps": num_warps,
    }

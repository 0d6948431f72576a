"""Triton: CoPE for requests of one query, their keys divided among programs.

A key's position needs the gates of all newer keys, which other programs hold. A first launch reads the keys, and stores
scores and each chunk's sum of gates; a second one knows what is newer than its chunk, and reads the scores and values.
Scores are 4 bytes a query head and key beside a row of keys and one of values. Nothing waits for another program, and
sums have one order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels import chunks
from posenc_runtime.kernels.attention_launch import in_base_2, layout, query_strides, stages, width
from posenc_runtime.kernels.chunks import Partials, chunk_size, merge, store_partial
from posenc_runtime.kernels.cope import Cope
from posenc_runtime.kernels.cope_tile import (
    BITS,
    count_keys,
    fraction,
    gate,
    is_saturated,
    logits_at,
    position,
    positions,
    sums_by_scan,
    units,
)
from posenc_runtime.kernels.paged import PagedBatch
from posenc_runtime.kernels.paged_tiles import (
    attend,
    blocks_of_keys,
    dot,
    load_queries,
    load_rows,
    offsets_of_keys,
    repeated,
)

SCORES = 2**26  # that one launch has room for, if it is of more than one request: 256 MiB, 2,097,152 keys by 32 heads
# Of a query and KV head, smaller ones than without positions: what is newest takes longer, and a lone request's
# other chunks would have to wait for it.
MAX_CHUNKS = 64
GATED_TILES = 4  # after so many, a program looks whether older keys all stand at the last position


@triton.jit(do_not_specialize=["first_request", "num_kv_heads", "room", "scale", "qe_scale"])
def _score_kernel(  # type: ignore[no-untyped-def]
    p_query,
    p_keys,
    p_pos_emb,
    p_scores,  # float32 [rows, stride_scores], base 2; rows are the heads of this launch's requests
    p_gate_sums,  # int64 [rows, room], see cope_tile
    p_position_logits,  # float32 [rows, NPOS], base 2
    p_query_start_loc,
    p_seq_lens,
    p_block_table,
    first_request,  # of this launch
    num_kv_heads,
    room,
    scale,  # this and the next in base 2
    qe_scale,
    stride_scores,
    stride_table,
    stride_query_token,
    stride_query_head,
    stride_cache_block,
    stride_cache_head,
    stride_cache_token,
    NPOS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    BM: tl.constexpr,  # at least GROUP
    BD: tl.constexpr,
):
    i_pair = tl.program_id(0)  # of a request of this launch and a KV head
    i_chunk = tl.program_id(1)
    i_request = first_request + i_pair // num_kv_heads
    i_kv_head = i_pair % num_kv_heads
    query = tl.load(p_query_start_loc + i_request)
    seq_len = tl.load(p_seq_lens + i_request)
    size = chunk_size(seq_len, MAX_CHUNKS, MIN_CHUNK, TILE)
    begin = i_chunk * size
    end = tl.minimum(begin + size, seq_len)
    if (tl.load(p_query_start_loc + i_request + 1) - query != 1) | (begin >= end):
        return
    o_row = tl.arange(0, BM)
    m_row = o_row < GROUP
    o_head = i_kv_head * GROUP + o_row
    b_query = load_queries(p_query, query, o_head, m_row, stride_query_token, stride_query_head, HEAD_DIM, BD)
    o_row = (i_pair * GROUP + o_row).to(tl.int64)
    if i_chunk == 0:
        for first_position in range(0, NPOS, 32):
            o_position = first_position + tl.arange(0, 32)
            b_logits = logits_at(o_position, b_query, p_pos_emb, qe_scale, NPOS, HEAD_DIM, BD)
            p_logit = p_position_logits + o_row[:, None] * NPOS + o_position[None, :]
            tl.store(p_logit, b_logits, mask=m_row[:, None] & (o_position < NPOS)[None, :])
    p_table_row = p_block_table + i_request.to(tl.int64) * stride_table
    p_keys += i_kv_head.to(tl.int64) * stride_cache_head
    b_gate_sum = tl.zeros([BM], tl.int64)
    for first in tl.range(begin, end, TILE, num_stages=STAGES):
        o_key = first + tl.arange(0, TILE)
        m_key = o_key < end
        b_block = tl.load(p_table_row + blocks_of_keys(o_key, BLOCK_SIZE), mask=m_key, other=0)
        o_key_row = offsets_of_keys(b_block, o_key, stride_cache_block, stride_cache_token, BLOCK_SIZE)
        b_keys = load_rows(p_keys + o_key_row, m_key, HEAD_DIM, BD)
        b_scores = dot(b_query, tl.trans(b_keys)) * scale  # [BM, TILE]
        p_score = p_scores + o_row[:, None] * stride_scores + o_key[None, :]
        tl.store(p_score, b_scores, mask=m_row[:, None] & m_key[None, :])
        b_gates = gate(tl.where(m_key[None, :], b_scores, -float("inf")))
        b_gate_sum += tl.sum(units(b_gates), 1)
    tl.store(p_gate_sums + o_row * room + i_chunk, b_gate_sum, mask=m_row)


@triton.jit(do_not_specialize=["first_request", "num_kv_heads", "room"])
def _value_kernel(  # type: ignore[no-untyped-def]
    p_values,
    p_scores,
    p_gate_sums,
    p_position_logits,
    p_acc,
    p_maxima,
    p_sums,
    p_counts,  # None where nobody counts
    p_query_start_loc,
    p_seq_lens,
    p_block_table,
    first_request,  # of this launch
    num_kv_heads,
    room,
    stride_scores,
    stride_table,
    stride_cache_block,
    stride_cache_head,
    stride_cache_token,
    NPOS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    GATED_TILES: tl.constexpr,
    BR: tl.constexpr,  # at least GROUP
    BM: tl.constexpr,  # a multiple of BR
    BD: tl.constexpr,
):
    i_pair = tl.program_id(0)  # of a request of this launch and a KV head
    # The newest chunks of a request take longest, for their keys are given positions, and start first.
    i_chunk = tl.num_programs(1) - 1 - tl.program_id(1)
    i_request = first_request + i_pair // num_kv_heads
    query = tl.load(p_query_start_loc + i_request)
    seq_len = tl.load(p_seq_lens + i_request)
    size = chunk_size(seq_len, MAX_CHUNKS, MIN_CHUNK, TILE)
    begin = i_chunk * size
    end = tl.minimum(begin + size, seq_len)
    if (tl.load(p_query_start_loc + i_request + 1) - query != 1) | (begin >= end):
        return
    o_row = tl.arange(0, BR)
    m_row = o_row < GROUP
    o_row = (i_pair * GROUP + o_row).to(tl.int64)
    o_chunk = tl.arange(0, MAX_CHUNKS)
    m_newer = (o_chunk > i_chunk) & (o_chunk < tl.cdiv(seq_len, size))
    p_newer = p_gate_sums + o_row[:, None] * room + o_chunk[None, :]
    b_newer = tl.sum(tl.load(p_newer, mask=m_row[:, None] & m_newer[None, :], other=0), 1)
    b_newer = tl.where(m_row, b_newer, position(NPOS))  # rows that do not count hold no other row back
    p_row = p_scores + o_row * stride_scores
    p_logits = p_position_logits + o_row * NPOS
    was_saturated = is_saturated(b_newer, NPOS)
    p_table_row = p_block_table + i_request.to(tl.int64) * stride_table
    p_values += (i_pair % num_kv_heads).to(tl.int64) * stride_cache_head
    b_acc = tl.zeros([BM, BD], tl.float32)
    b_max = tl.full([BR], -float("inf"), tl.float32)
    b_sum = tl.zeros([BR], tl.float32)
    # Tiles that are left, the oldest. A loop that asked after each whether to go on would not load ahead.
    num_tiles = tl.cdiv(end - begin, TILE)
    is_gated = not was_saturated
    while is_gated:
        num_gated = tl.minimum(GATED_TILES, num_tiles)
        for i_tile in range(0, num_gated):
            o_key = begin + (num_tiles - 1 - i_tile) * TILE + tl.arange(0, TILE)
            m_key = o_key < end
            m_score = m_row[:, None] & m_key[None, :]
            b_scores = tl.load(p_row[:, None] + o_key[None, :], mask=m_score, other=0.0)
            b_block = tl.load(p_table_row + blocks_of_keys(o_key, BLOCK_SIZE), mask=m_key, other=0)
            o_value = offsets_of_keys(b_block, o_key, stride_cache_block, stride_cache_token, BLOCK_SIZE)
            b_values = load_rows(p_values + o_value, m_key, HEAD_DIM, BD)
            b_scores = tl.where(m_key[None, :], b_scores, -float("inf"))
            b_past, b_tile = sums_by_scan(gate(b_scores))
            b_row, b_past = positions(b_past, b_newer, NPOS)
            o_position = b_row[:, None] + (b_past >> BITS)
            b_here = tl.load(p_logits[:, None] + o_position, mask=m_score, other=0.0)
            b_next = tl.load(p_logits[:, None] + tl.minimum(o_position + 1, NPOS - 1), mask=m_score, other=0.0)
            b_scores += b_here + (b_next - b_here) * fraction(b_past)
            b_newer += b_tile
            b_acc, b_max, b_sum = attend(b_scores, b_values, b_acc, b_max, b_sum)
        num_tiles -= num_gated
        is_gated = (num_tiles > 0) & (not is_saturated(b_newer, NPOS))
    b_last_logit = tl.load(p_logits + NPOS - 1, mask=m_row, other=0.0)
    for i_tile in tl.range(0, num_tiles, num_stages=STAGES):
        o_key = begin + i_tile * TILE + tl.arange(0, TILE)
        m_key = o_key >= begin
        b_scores = tl.load(p_row[:, None] + o_key[None, :], mask=m_row[:, None], other=0.0) + b_last_logit[:, None]
        b_block = tl.load(p_table_row + blocks_of_keys(o_key, BLOCK_SIZE))
        o_value = offsets_of_keys(b_block, o_key, stride_cache_block, stride_cache_token, BLOCK_SIZE)
        b_values = load_rows(p_values + o_value, m_key, HEAD_DIM, BD)
        b_acc, b_max, b_sum = attend(b_scores, b_values, b_acc, b_max, b_sum)
    if p_counts is not None:
        # One program counts for all chunks: that in which the last position is reached, or the last to get there.
        has_saturated = is_saturated(b_newer, NPOS)
        if (not was_saturated) & (has_saturated | (i_chunk == 0)):
            count_keys(p_counts, seq_len, tl.where(has_saturated, begin + num_tiles * TILE, 0))
    o_row = tl.arange(0, BM)
    m_row = o_row < GROUP
    o_row += (first_request * num_kv_heads + i_pair) * GROUP  # of all launches
    b_max, b_sum = tl.reshape(repeated(b_max[:, None], BM), [BM]), tl.reshape(repeated(b_sum[:, None], BM), [BM])
    store_partial(b_acc, b_max, b_sum, p_acc, p_maxima, p_sums, o_row, m_row, i_chunk, room, HEAD_DIM, BD)


def decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    cope: Cope,
    scale: float,
    out: Tensor,
    counts: Tensor | None,
) -> None:
    """Write the outputs of all requests with one query.

    Scores take ``4 num_heads max_seq_len`` bytes a request. Requests are launched in parts that have room for theirs.
    """
    num_heads, num_kv_heads = query.shape[1], key_cache.shape[1]
    group, npos, room = num_heads // num_kv_heads, cope.pos_emb.shape[1], chunks.room(batch, MAX_CHUNKS)
    partials = Partials.empty(query, batch, MAX_CHUNKS)
    stride_scores = triton.cdiv(batch.max_seq_len, 16) * 16  # so that a row begins where wide accesses may
    num_launches = triton.cdiv(len(batch), max(1, SCORES // (num_heads * stride_scores)))
    most = triton.cdiv(len(batch), num_launches)
    rows = most * num_heads
    scores, position_logits = (
        torch.empty(rows, columns, dtype=torch.float32, device=query.device) for columns in (stride_scores, npos)
    )
    of_chunks: dict[str, Any] = {
        "p_scores": scores,
        "p_gate_sums": torch.empty(rows, room, dtype=torch.int64, device=query.device),
        "p_position_logits": position_logits,
        "num_kv_heads": num_kv_heads,
        "room": room,
        "stride_scores": stride_scores,
        "NPOS": npos,
        "BM": max(16, triton.next_power_of_2(group)),
        "num_warps": 8 if width(query) > 1 or group > 8 else 4,  # as many registers as a tile takes
        "STAGES": stages(query),
    }
    of_chunks |= layout(query, key_cache, batch) | chunks.sizes(MAX_CHUNKS)
    for first_request in range(0, len(batch), most):
        grid = (min(most, len(batch) - first_request) * num_kv_heads, room)
        _score_kernel[grid](
            p_query=query,
            p_keys=key_cache,
            p_pos_emb=cope.pos_emb,
            first_request=first_request,
            scale=in_base_2(scale),
            qe_scale=in_base_2(cope.qe_scale),
            **query_strides(query),
            **of_chunks,
        )
        _value_kernel[grid](
            p_values=value_cache,
            p_counts=counts,
            first_request=first_request,
            GATED_TILES=GATED_TILES,
            BR=triton.next_power_of_2(group),
            **(of_chunks | partials.arguments()),
        )
    merge(partials, None, None, batch, num_kv_heads, out)

"""Triton: CoPE's scores of requests of one query, and each chunk's sum of gates, which ``cope_decode`` then reads."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from posenc_runtime.kernels.attention.chunk_list import count_chunks, find_chunk
from posenc_runtime.kernels.attention.chunks import chunk_size
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.cope_tile import gate, logits_at, units
from posenc_runtime.kernels.attention.launch import in_base_2
from posenc_runtime.kernels.attention.paged_tiles import (
    blocks_of_keys,
    dot,
    load_queries,
    load_rows,
    offsets_of_keys,
)


@triton.jit
def place_of_scores(p_query_start_loc, p_seq_lens, i_request, num_scores, NUM_HEADS, REQUESTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the scores of a request with one query begin, the stride of its heads' rows, and whether there is room.

    Lone queries have theirs one after the other, so that what is alive decides who has room. Begin and stride are
    multiples of 16, where wide accesses may begin.
    """
    sixteens = tl.zeros([], tl.int64)
    for first in range(0, i_request, REQUESTS):
        o_request = first + tl.arange(0, REQUESTS)
        m_request = o_request < i_request
        b_query = tl.load(p_query_start_loc + o_request, mask=m_request, other=0)
        b_after = tl.load(p_query_start_loc + o_request + 1, mask=m_request, other=0)
        b_len = tl.load(p_seq_lens + o_request, mask=m_request, other=0)
        sixteens += tl.sum(tl.where(b_after - b_query == 1, tl.cdiv(b_len, 16), 0).to(tl.int64), 0)
    own = tl.cdiv(tl.load(p_seq_lens + i_request), 16)
    has_room = (sixteens + own) * NUM_HEADS * 16 <= num_scores
    return sixteens * NUM_HEADS * 16, own * 16, has_room


@triton.jit
def store_scores(  # type: ignore[no-untyped-def]
    p_score_row,
    m_row,
    b_query,
    begin,
    end,
    p_keys,
    p_table_row,
    scale,
    stride_cache_block,
    stride_cache_token,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    BD: tl.constexpr,
):
    """Store the scores of a chunk's keys, and return each row's sum of their gates, int64 ``[BM]``.

    Both launches compute scores by this, and so the same ones.

    Args:
        p_score_row: where the request's first key has its score, of each row ``[BM]``.
        m_row: whose scores are stored.
    """
    b_gate_sum = tl.zeros(m_row.shape, tl.int64)
    for first in tl.range(begin, end, TILE, num_stages=STAGES):
        o_key = first + tl.arange(0, TILE)
        m_key = o_key < end
        b_block = tl.load(p_table_row + blocks_of_keys(o_key, BLOCK_SIZE), mask=m_key, other=0)
        o_key_row = offsets_of_keys(b_block, o_key, stride_cache_block, stride_cache_token, BLOCK_SIZE)
        b_keys = load_rows(p_keys + o_key_row, m_key, HEAD_DIM, BD)
        b_scores = dot(b_query, tl.trans(b_keys)) * scale  # [BM, TILE]
        tl.store(p_score_row[:, None] + o_key[None, :], b_scores, mask=m_row[:, None] & m_key[None, :])
        b_gates = gate(tl.where(m_key[None, :], b_scores, -float("inf")))
        b_gate_sum += tl.sum(units(b_gates), 1)
    return b_gate_sum


@triton.jit(do_not_specialize=["num_requests", "num_kv_heads", "room", "num_scores", "scale", "qe_scale"])
def _score_kernel(  # type: ignore[no-untyped-def]
    p_query,
    p_keys,
    p_pos_emb,
    p_scores,  # float32 [num_scores], base 2, see place_of_scores
    p_gate_sums,  # int64 [num_requests * num_heads, room], see cope_tile
    p_position_logits,  # float32 [num_requests * num_heads, NPOS], base 2
    p_query_start_loc,
    p_seq_lens,
    p_block_table,
    num_requests,
    num_kv_heads,
    room,
    num_scores,
    scale,  # this and the next in base 2
    qe_scale,
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
    REQUESTS: tl.constexpr,
    STAGES: tl.constexpr,
    BM: tl.constexpr,  # at least GROUP
    BD: tl.constexpr,
):
    # In a loop of their own, what position logits take of registers is free again when keys are read.
    for i_pair in range(tl.program_id(0), num_requests * num_kv_heads, tl.num_programs(0)):
        query = tl.load(p_query_start_loc + i_pair // num_kv_heads)
        if tl.load(p_query_start_loc + i_pair // num_kv_heads + 1) - query == 1:
            o_row = tl.arange(0, BM)
            m_row = o_row < GROUP
            o_head = i_pair % num_kv_heads * GROUP + o_row
            b_query = load_queries(p_query, query, o_head, m_row, stride_query_token, stride_query_head, HEAD_DIM, BD)
            p_row = p_position_logits + (i_pair * GROUP + o_row).to(tl.int64) * NPOS
            for first in range(0, NPOS, 32):
                o_position = first + tl.arange(0, 32)
                b_logits = logits_at(o_position, b_query, p_pos_emb, qe_scale, NPOS, HEAD_DIM, BD)
                m_logit = m_row[:, None] & (o_position < NPOS)[None, :]
                tl.store(p_row[:, None] + o_position[None, :], b_logits, mask=m_logit)
    num_chunks = count_chunks(p_query_start_loc, p_seq_lens, num_requests, REQUESTS, MAX_CHUNKS, MIN_CHUNK, TILE)
    for index in range(tl.program_id(0), num_chunks * num_kv_heads, tl.num_programs(0)):
        place, i_kv_head = index // num_kv_heads, index % num_kv_heads
        i_request, i_chunk = find_chunk(
            place, p_query_start_loc, p_seq_lens, num_requests, REQUESTS, MAX_CHUNKS, MIN_CHUNK, TILE
        )
        seq_len = tl.load(p_seq_lens + i_request)
        size = chunk_size(seq_len, MAX_CHUNKS, MIN_CHUNK, TILE)
        begin = i_chunk * size
        end = tl.minimum(begin + size, seq_len)
        if begin < end:  # which is so, but what is not within a condition is kept in registers from chunk to chunk
            query = tl.load(p_query_start_loc + i_request)
            o_row = tl.arange(0, BM)
            m_row = o_row < GROUP
            o_head = i_kv_head * GROUP + o_row
            b_query = load_queries(p_query, query, o_head, m_row, stride_query_token, stride_query_head, HEAD_DIM, BD)
            first_score, stride_scores, has_room = place_of_scores(
                p_query_start_loc, p_seq_lens, i_request, num_scores, num_kv_heads * GROUP, REQUESTS
            )
            p_score_row = p_scores + first_score + o_head.to(tl.int64) * stride_scores
            o_row = (i_request * num_kv_heads * GROUP + o_head).to(tl.int64)
            b_gate_sum = store_scores(
                p_score_row,
                m_row & has_room,
                b_query,
                begin,
                end,
                p_keys + i_kv_head.to(tl.int64) * stride_cache_head,
                p_block_table + i_request.to(tl.int64) * stride_table,
                scale,
                stride_cache_block,
                stride_cache_token,
                HEAD_DIM,
                BLOCK_SIZE,
                TILE,
                STAGES,
                BD,
            )
            tl.store(p_gate_sums + o_row * room + i_chunk, b_gate_sum, mask=m_row)


def write_scores(programs: int, cope: Cope, of_chunks: dict[str, Any]) -> None:
    """Launch the kernel that writes scores, sums of gates and position logits.

    Args:
        programs: that go through the list of chunks; they change no result.
        of_chunks: what else the kernel takes, by name.
    """
    _score_kernel[(programs,)](p_pos_emb=cope.pos_emb, qe_scale=in_base_2(cope.qe_scale), **of_chunks)

"""Triton: CoPE for requests of one query, their keys divided among programs.

A key's position needs the gates of all newer keys, which other programs hold. A first launch reads the keys, and stores
scores and each chunk's sum of gates; a second one knows what is newer than its chunk, and reads the scores and values.
Scores are 4 bytes a query head and key beside a row of keys and one of values. Nothing waits for another program, and
sums have one order. Decision 35.

There is room for the scores of more keys than a cache holds, and not for a batch of the longest requests, which could
only share their blocks. Of requests that find no room a third launch computes scores again, as the first one did.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels.attention import chunk_list, chunks
from posenc_runtime.kernels.attention.chunk_list import count_chunks, find_chunk
from posenc_runtime.kernels.attention.chunks import Partials, chunk_size, merge, store_partial
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.cope_tile import (
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
from posenc_runtime.kernels.attention.heads import row_bytes
from posenc_runtime.kernels.attention.launch import in_base_2, stages, width
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.paged_tiles import (
    attend,
    blocks_of_keys,
    dot,
    load_queries,
    load_rows,
    offsets_of_keys,
    repeated,
)

# That there is room for, if there is more than one request: 256 MiB, 2,097,152 keys by 32 heads.
SCORES = 2**26
# That go through the list of chunks, and change no result: all that an H100 has room for at once. Of those that read
# values, whose chunks take unlike times, twice as many, so that some begin when the first end.
SCORE_PROGRAMS, VALUE_PROGRAMS, AGAIN_PROGRAMS = 660, 792, 264
# Of a query and KV head, smaller ones than without positions: what is newest takes longer, and a lone request's
# other chunks would have to wait for it.
MAX_CHUNKS = 64
_REGISTERS = 168  # of a thread, so that a multiprocessor has room for three programs that read values
GATED_TILES = 4  # after so many, a program looks whether older keys all stand at the last position (Decision 36)


@triton.jit
def _place_of_scores(p_query_start_loc, p_seq_lens, i_request, num_scores, NUM_HEADS, REQUESTS: tl.constexpr):  # type: ignore[no-untyped-def]
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
def _store_scores(  # type: ignore[no-untyped-def]
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
    p_scores,  # float32 [num_scores], base 2, see _place_of_scores
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
            first_score, stride_scores, has_room = _place_of_scores(
                p_query_start_loc, p_seq_lens, i_request, num_scores, num_kv_heads * GROUP, REQUESTS
            )
            p_score_row = p_scores + first_score + o_head.to(tl.int64) * stride_scores
            o_row = (i_request * num_kv_heads * GROUP + o_head).to(tl.int64)
            b_gate_sum = _store_scores(
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


@triton.jit(do_not_specialize=["num_requests", "num_kv_heads", "room", "num_scores", "scale"])
def _value_kernel(  # type: ignore[no-untyped-def]
    p_query,
    p_keys,
    p_values,
    p_scores,  # where they are computed again, float32 [programs, GROUP, stride_own]
    p_gate_sums,
    p_position_logits,
    p_acc,
    p_sums,
    p_counts,  # None where nobody counts
    p_query_start_loc,
    p_seq_lens,
    p_block_table,
    num_requests,
    num_kv_heads,
    room,
    num_scores,
    scale,
    stride_own,
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
    GATED_TILES: tl.constexpr,
    AGAIN: tl.constexpr,  # for requests whose scores have no room, and not for the others
    BR: tl.constexpr,  # at least GROUP
    BM: tl.constexpr,  # a multiple of BR
    BD: tl.constexpr,
):
    num_chunks = count_chunks(p_query_start_loc, p_seq_lens, num_requests, REQUESTS, MAX_CHUNKS, MIN_CHUNK, TILE)
    for index in range(tl.program_id(0), num_chunks * num_kv_heads, tl.num_programs(0)):
        place, i_kv_head = index // num_kv_heads, index % num_kv_heads
        i_request, i_chunk = find_chunk(
            place, p_query_start_loc, p_seq_lens, num_requests, REQUESTS, MAX_CHUNKS, MIN_CHUNK, TILE
        )
        seq_len = tl.load(p_seq_lens + i_request)
        size = chunk_size(seq_len, MAX_CHUNKS, MIN_CHUNK, TILE)
        # The newest chunks of a request take longest, for their keys are given positions, and start first.
        i_chunk = tl.cdiv(seq_len, size) - 1 - i_chunk
        begin = i_chunk * size
        end = tl.minimum(begin + size, seq_len)
        first_score, stride_scores, has_room = _place_of_scores(
            p_query_start_loc, p_seq_lens, i_request, num_scores, num_kv_heads * GROUP, REQUESTS
        )
        if has_room != AGAIN:
            i_head = i_kv_head * GROUP
            p_first_score = p_scores + first_score + i_head.to(tl.int64) * stride_scores
            p_table_row = p_block_table + i_request.to(tl.int64) * stride_table
            if AGAIN:
                stride_scores = stride_own
                p_first_score = p_scores + tl.program_id(0).to(tl.int64) * GROUP * stride_own - begin
                o_row = tl.arange(0, BM)
                m_row = o_row < GROUP
                query = tl.load(p_query_start_loc + i_request)
                b_query = load_queries(
                    p_query, query, i_head + o_row, m_row, stride_query_token, stride_query_head, HEAD_DIM, BD
                )
                tl.debug_barrier()  # threads may still read the scores of this program's last chunk
                _store_scores(
                    p_first_score + o_row.to(tl.int64) * stride_scores,
                    m_row,
                    b_query,
                    begin,
                    end,
                    p_keys + i_kv_head.to(tl.int64) * stride_cache_head,
                    p_table_row,
                    scale,
                    stride_cache_block,
                    stride_cache_token,
                    HEAD_DIM,
                    BLOCK_SIZE,
                    TILE,
                    STAGES,
                    BD,
                )
                tl.debug_barrier()  # threads read what others have stored
            o_row = tl.arange(0, BR)
            m_row = o_row < GROUP
            p_row = p_first_score + o_row.to(tl.int64) * stride_scores
            o_row = (i_request * num_kv_heads * GROUP + i_head + o_row).to(tl.int64)
            o_chunk = tl.arange(0, MAX_CHUNKS)
            m_newer = (o_chunk > i_chunk) & (o_chunk < tl.cdiv(seq_len, size))
            p_newer = p_gate_sums + o_row[:, None] * room + o_chunk[None, :]
            b_newer = tl.sum(tl.load(p_newer, mask=m_row[:, None] & m_newer[None, :], other=0), 1)
            b_newer = tl.where(m_row, b_newer, position(NPOS))  # rows that do not count hold no other row back
            p_logits = p_position_logits + o_row * NPOS
            was_saturated = is_saturated(b_newer, NPOS)
            p_head_values = p_values + i_kv_head.to(tl.int64) * stride_cache_head
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
                    b_values = load_rows(p_head_values + o_value, m_key, HEAD_DIM, BD)
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
                b_scores = (
                    tl.load(p_row[:, None] + o_key[None, :], mask=m_row[:, None], other=0.0) + b_last_logit[:, None]
                )
                b_block = tl.load(p_table_row + blocks_of_keys(o_key, BLOCK_SIZE))
                o_value = offsets_of_keys(b_block, o_key, stride_cache_block, stride_cache_token, BLOCK_SIZE)
                b_values = load_rows(p_head_values + o_value, m_key, HEAD_DIM, BD)
                b_acc, b_max, b_sum = attend(b_scores, b_values, b_acc, b_max, b_sum)
            if p_counts is not None:
                # One program counts for all chunks: where the last position is reached, or the last to get there.
                has_saturated = is_saturated(b_newer, NPOS)
                if (not was_saturated) & (has_saturated | (i_chunk == 0)):
                    count_keys(p_counts, seq_len, tl.where(has_saturated, begin + num_tiles * TILE, 0))
            o_row = tl.arange(0, BM)
            m_row = o_row < GROUP
            o_row += i_request * num_kv_heads * GROUP + i_head
            b_max, b_sum = (
                tl.reshape(repeated(b_max[:, None], BM), [BM]),
                tl.reshape(repeated(b_sum[:, None], BM), [BM]),
            )
            store_partial(b_acc, b_max, b_sum, p_acc, p_sums, o_row, m_row, i_chunk, room, HEAD_DIM, BD)


def decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    cope: Cope,
    scale: float,
    out: Tensor,
    counts: Tensor | None,
    arguments: dict[str, Any],
) -> None:
    """Write the outputs of all requests with one query.

    Scores take ``4 num_heads max_seq_len`` bytes a request, and those of all requests together at most ``4 SCORES``, or
    what one takes if that is more.
    """
    num_heads, num_kv_heads = query.shape[1], key_cache.shape[1]
    group, npos = num_heads // num_kv_heads, cope.pos_emb.shape[1]
    partials = Partials.empty(query, batch, MAX_CHUNKS)
    most_items = len(batch) * num_kv_heads * partials.room
    of_longest = -(-batch.max_seq_len // 16) * 16 * num_heads
    num_scores = min(len(batch) * of_longest, max(SCORES, of_longest))
    of_chunks: dict[str, Any] = {
        "p_gate_sums": _empty(query, torch.int64, len(batch) * num_heads, partials.room),
        "p_position_logits": _empty(query, torch.float32, len(batch) * num_heads, npos),
        "num_requests": len(batch),
        "num_kv_heads": num_kv_heads,
        "room": partials.room,
        "num_scores": num_scores,
        "NPOS": npos,
        "REQUESTS": chunk_list.REQUESTS,
    }
    of_heads, registers = _constants(group, query.shape[2], query.dtype, scale)
    of_chunks |= of_heads
    of_chunks |= arguments | chunks.sizes(MAX_CHUNKS)
    of_chunks |= {"p_query": query, "p_keys": key_cache, "p_scores": _empty(query, torch.float32, num_scores)}
    _score_kernel[(min(most_items, SCORE_PROGRAMS),)](
        p_pos_emb=cope.pos_emb, qe_scale=in_base_2(cope.qe_scale), **of_chunks
    )
    of_chunks |= partials.arguments()
    of_chunks |= {"p_values": value_cache, "p_counts": counts, "GATED_TILES": GATED_TILES}
    of_chunks["BR"] = triton.next_power_of_2(group)
    _value_kernel[(min(most_items, VALUE_PROGRAMS),)](stride_own=0, AGAIN=False, maxnreg=registers, **of_chunks)
    if num_scores < len(batch) * of_longest:
        programs, stride_own = min(most_items, AGAIN_PROGRAMS), chunks.largest(batch, MAX_CHUNKS)
        of_chunks["p_scores"] = _empty(query, torch.float32, programs, group, stride_own)
        _value_kernel[(programs,)](stride_own=stride_own, AGAIN=True, **of_chunks)
    merge(partials, None, None, batch, num_kv_heads, out)


def _empty(query: Tensor, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=query.device)


@functools.lru_cache(maxsize=16)
def _constants(group: int, head_dim: int, dtype: torch.dtype, scale: float) -> tuple[dict[str, Any], int | None]:
    """What follows from the heads alone, and the most registers of the launch that reads values, if they are bounded.

    It is computed once, for a step asks in every layer.
    """
    num_warps = 8 if width(head_dim, dtype) > 1 or group > 8 else 4  # as many registers as a tile takes
    of_heads = {
        "scale": in_base_2(scale),
        "BM": max(16, triton.next_power_of_2(group)),
        "num_warps": num_warps,
        "STAGES": stages(head_dim, dtype),
    }
    # Left to itself the assembler takes about as many, and spills some.
    return of_heads, _REGISTERS if num_warps == 4 and row_bytes(head_dim, dtype) == 256 else None

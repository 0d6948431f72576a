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
from posenc_runtime.kernels.attention.cope_scores import place_of_scores, store_scores, write_scores
from posenc_runtime.kernels.attention.cope_tile import (
    BITS,
    count_keys,
    fraction,
    gate,
    is_saturated,
    position,
    positions,
    sums_by_scan,
)
from posenc_runtime.kernels.attention.heads import row_bytes
from posenc_runtime.kernels.attention.launch import in_base_2, stages, width
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.paged_tiles import (
    attend,
    blocks_of_keys,
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
        first_score, stride_scores, has_room = place_of_scores(
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
                store_scores(
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
    write_scores(min(most_items, SCORE_PROGRAMS), cope, of_chunks)
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

"""Triton: the chunks that the lone queries of a batch have, in one list that programs go through in turn. Decision 48.

A captured graph knows the longest request that it may be given, and no more. A program to each chunk of that would be
65,536 programs for 256 requests and eight KV heads, nearly all of which find nothing to do. So there are as many as a
GPU has room for, and what a program takes next it finds in the lengths of all requests. They are looked through again
for each chunk, which is short beside reading its keys, and leaves what a program remembers between chunks at nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from posenc_runtime.kernels.attention.chunks import chunk_size

REQUESTS = 128  # that are looked at together, one to a thread; their number changes no result
_BITS = tl.constexpr(20)  # of a number of chunks
_CHUNKS = tl.constexpr(2**20 - 1)


@triton.jit
def count_chunks(  # type: ignore[no-untyped-def]
    p_query_start_loc,
    p_seq_lens,
    num_requests,
    REQUESTS: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    """How many chunks there are of all requests with one query; others have none."""
    num_chunks = num_requests * 0
    for first in range(0, num_requests, REQUESTS):
        o_request = first + tl.arange(0, REQUESTS)
        b_chunks = _chunks(p_query_start_loc, p_seq_lens, o_request, num_requests, MAX_CHUNKS, MIN_CHUNK, TILE)
        num_chunks += tl.sum(b_chunks, 0)
    return num_chunks


@triton.jit
def find_chunk(  # type: ignore[no-untyped-def]
    place,
    p_query_start_loc,
    p_seq_lens,
    num_requests,
    REQUESTS: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Whose chunk stands at a place below ``count_chunks``, and which of its chunks that is.

    Chunks stand one request after the other, a request's in their order.
    """
    tl.static_assert(REQUESTS * MAX_CHUNKS <= _CHUNKS)
    tl.static_assert(REQUESTS < 1024)
    i_request = place * 0
    i_chunk = place * 0
    for first in range(0, num_requests, REQUESTS):
        o_request = first + tl.arange(0, REQUESTS)
        b_chunks = _chunks(p_query_start_loc, p_seq_lens, o_request, num_requests, MAX_CHUNKS, MIN_CHUNK, TILE)
        b_ends = tl.cumsum(b_chunks, 0)
        # Ends grow, so one maximum finds how many requests end at or before the place, and where the last does.
        b_marks = ((tl.arange(0, REQUESTS) + 1) << _BITS) | b_ends
        mark = tl.max(tl.where(b_ends <= place, b_marks, 0), 0)
        num_chunks = tl.max(b_ends, 0)
        is_here = (place >= 0) & (place < num_chunks)
        i_request = tl.where(is_here, first + (mark >> _BITS), i_request)
        i_chunk = tl.where(is_here, place - (mark & _CHUNKS), i_chunk)
        place -= num_chunks
    return i_request, i_chunk


@triton.jit
def _chunks(  # type: ignore[no-untyped-def]
    p_query_start_loc,
    p_seq_lens,
    o_request,
    num_requests,
    MAX_CHUNKS: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Of each request, int32; of nobody none."""
    m_request = o_request < num_requests
    b_query = tl.load(p_query_start_loc + o_request, mask=m_request, other=0)
    b_after = tl.load(p_query_start_loc + o_request + 1, mask=m_request, other=0)
    b_len = tl.load(p_seq_lens + o_request, mask=m_request, other=0)
    b_chunks = tl.cdiv(b_len, chunk_size(b_len, MAX_CHUNKS, MIN_CHUNK, TILE))
    return tl.where(b_after - b_query == 1, b_chunks, 0)

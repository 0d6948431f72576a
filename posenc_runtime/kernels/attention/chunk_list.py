"""Triton: one list of the chunks of all requests with one query, which programs take in turn. Decision 48.

A captured CUDA graph fixes the number of programs, and it knows only the longest request that it may be given. One
program for each possible chunk would be 65,536 programs for 256 requests and eight KV heads, and nearly all of them
would find nothing to do. So a launch has as many programs as a GPU runs at once. A program finds its next chunk from
the lengths of all requests. It reads the lengths again for each chunk: that is short compared to reading the chunk's
keys, and keeps no registers occupied between chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from posenc_runtime.kernels.attention.chunks import chunk_size

REQUESTS = 128  # requests whose lengths are read together, one by each thread; the number changes no result
_BITS = tl.constexpr(20)  # bits of a number of chunks
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
    after=None,
):
    """The number of chunks of all requests with one query; other requests have none.

    Args:
        after: requests of at most this many tokens have none, too. None leaves none out.
    """
    num_chunks = num_requests * 0
    for first in range(0, num_requests, REQUESTS):
        o_request = first + tl.arange(0, REQUESTS)
        b_chunks = _chunks(p_query_start_loc, p_seq_lens, o_request, num_requests, MAX_CHUNKS, MIN_CHUNK, TILE, after)
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
    after=None,
):
    """The request and the number of the chunk at index ``place`` of the list; ``place`` is below ``count_chunks``.

    The list has the chunks of one request after those of the other, each in order. See ``count_chunks`` for ``after``.
    """
    tl.static_assert(REQUESTS * MAX_CHUNKS <= _CHUNKS)
    tl.static_assert(REQUESTS < 1024)
    i_request = place * 0
    i_chunk = place * 0
    for first in range(0, num_requests, REQUESTS):
        o_request = first + tl.arange(0, REQUESTS)
        b_chunks = _chunks(p_query_start_loc, p_seq_lens, o_request, num_requests, MAX_CHUNKS, MIN_CHUNK, TILE, after)
        b_ends = tl.cumsum(b_chunks, 0)
        # A mark is a request's number and, in the low bits, the end of its chunks. Ends ascend, so one maximum finds
        # how many requests end at or before the place, and where the last of these ends.
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
    after=None,
):
    """The number of chunks of each request, int32; 0 for requests that do not exist or have several queries."""
    m_request = o_request < num_requests
    b_query = tl.load(p_query_start_loc + o_request, mask=m_request, other=0)
    b_after = tl.load(p_query_start_loc + o_request + 1, mask=m_request, other=0)
    b_len = tl.load(p_seq_lens + o_request, mask=m_request, other=0)
    b_chunks = tl.cdiv(b_len, chunk_size(b_len, MAX_CHUNKS, MIN_CHUNK, TILE))
    m_has = b_after - b_query == 1
    if after is not None:
        m_has &= b_len > after
    return tl.where(m_has, b_chunks, 0)

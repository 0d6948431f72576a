"""Triton: tiles of a paged batch's queries and keys, and the running softmax over them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def request_of_tile(i_tile, p_query_start_loc, num_requests, BQ: tl.constexpr):  # type: ignore[no-untyped-def]
    """The request of tile ``i_tile`` of the batch's queries, and the number of the request's first query in the tile.

    The tiles of request r begin at number ``query_start_loc[r] // BQ + r``. They are at least as many as the request's
    queries fill. All requests together have ``num_tokens // BQ + num_requests`` tiles, a number that the host knows
    without waiting for the device. In a surplus tile, the first query is past the request's last.
    """
    low = i_tile * 0
    high = low + num_requests
    while high - low > 1:
        middle = (low + high) // 2
        is_begun = tl.load(p_query_start_loc + middle) // BQ + middle <= i_tile
        low = tl.where(is_begun, middle, low)
        high = tl.where(is_begun, high, middle)
    first_tile = tl.load(p_query_start_loc + low) // BQ + low
    return low, (i_tile - first_tile) * BQ


@triton.jit
def rows_of_tile(i_kv_head, first_query, query_len, BM: tl.constexpr, BQ: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The rows of a tile: one for each query of the tile and each head of the group.

    Returns:
        For each of the BM rows, the query's number in its request, the head, and whether the row counts. Rows that do
        not count repeat the tile's last query, so that every row has a key to attend to and needs no special case.
    """
    o_row = tl.arange(0, BM)
    last_query = tl.minimum(first_query + BQ, query_len) - 1
    o_query = first_query + o_row // GROUP
    m_row = (o_row < BQ * GROUP) & (o_query <= last_query)
    return tl.minimum(o_query, last_query), i_kv_head * GROUP + o_row % GROUP, m_row


@triton.jit
def blocks_of_keys(o_key, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The index, in its request, of each key's block. Unsigned, because dividing signed numbers takes longer."""
    return o_key.to(tl.uint32) // BLOCK_SIZE


@triton.jit
def offsets_of_keys(b_block, o_key, stride_block, stride_token, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Offsets of keys (or values) in a cache, in elements; int64, because a cache may have more than 2^31 elements.

    Args:
        b_block: the physical block of each key.
        o_key: the index of each key in its request.
    """
    return _offset(b_block, stride_block) + _offset(o_key.to(tl.uint32) % BLOCK_SIZE, stride_token)


@triton.jit
def _offset(b_number, stride):  # type: ignore[no-untyped-def]
    """The int64 product of two numbers of at least 0. Unsigned factors make it one instruction."""
    if stride.dtype == tl.int32:
        stride = stride.to(tl.uint32)
    return b_number.to(tl.uint32).to(tl.int64) * stride.to(tl.int64)


@triton.jit
def load_rows(p_row, m_row, HEAD_DIM: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load rows of ``HEAD_DIM`` numbers, ``[rows, BD]``: zero in masked rows and in columns past ``HEAD_DIM``."""
    o_dim = tl.arange(0, BD)
    return tl.load(p_row[:, None] + o_dim[None, :], mask=m_row[:, None] & (o_dim < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def load_queries(  # type: ignore[no-untyped-def]
    p_query, token, o_head, m_row, stride_query_token, stride_query_head, HEAD_DIM: tl.constexpr, BD: tl.constexpr
):
    """Load rows of queries ``[BM, BD]``, zero in rows that do not count.

    Args:
        token: index of the query in the batch: one number for a lone query, or one for each row ``[BM]``.
        o_head: head of each row ``[BM]``.
    """
    o_row = token.to(tl.int64) * stride_query_token + o_head.to(tl.int64) * stride_query_head
    return load_rows(p_query + o_row, m_row, HEAD_DIM, BD)


@triton.jit
def store_rows(p_row, b_rows, m_row, HEAD_DIM: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    o_dim = tl.arange(0, BD)
    b_rows = b_rows.to(p_row.dtype.element_ty)
    tl.store(p_row[:, None] + o_dim[None, :], b_rows, mask=m_row[:, None] & (o_dim < HEAD_DIM)[None, :])


@triton.jit
def dot(b_rows, b_columns, b_acc=None):  # type: ignore[no-untyped-def]
    """A matrix product with float32 sums. Factors of float32 take three products of tf32; narrower ones take one."""
    return tl.dot(b_rows, b_columns, b_acc, input_precision="tf32x3")


@triton.jit
def repeated(b_rows, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows ``[BR, N]``, repeated up to ``[BM, N]``."""
    BR: tl.constexpr = b_rows.shape[0]
    N: tl.constexpr = b_rows.shape[1]
    if BR != BM:
        b_rows = tl.reshape(tl.broadcast_to(b_rows[None, :, :], [BM // BR, BR, N]), [BM, N])
    return b_rows


@triton.jit
def attend(b_scores, b_values, b_acc, b_max, b_sum):  # type: ignore[no-untyped-def]
    """Add a tile of keys to a running softmax, in base 2, where an exponential is one instruction.

    A matrix product needs 16 rows, but a group may have, for example, 4 heads. Then the 4 rows are repeated only for
    the product; scores and weights are computed once.

    Args:
        b_scores: base-2 logits ``[BR, BN]``, minus infinity for masked keys.
        b_values: ``[BN, BD]``.
        b_acc: weighted values so far ``[BM, BD]``; BM is a multiple of BR.
        b_max, b_sum: largest score and sum of weights so far ``[BR]``.
    """
    BM: tl.constexpr = b_acc.shape[0]
    b_new_max = tl.maximum(b_max, tl.max(b_scores, 1))
    b_decay = tl.exp2(b_max - b_new_max)
    b_weights = tl.exp2(b_scores - b_new_max[:, None])
    b_acc = dot(repeated(b_weights.to(b_values.dtype), BM), b_values, b_acc * repeated(b_decay[:, None], BM))
    return b_acc, b_new_max, b_sum * b_decay + tl.sum(b_weights, 1)

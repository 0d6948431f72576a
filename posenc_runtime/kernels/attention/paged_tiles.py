"""Triton: tiles of a paged batch's queries and keys, and the running softmax over them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def request_of_tile(i_tile, p_query_start_loc, num_requests, BQ: tl.constexpr):  # type: ignore[no-untyped-def]
    """The request that tile ``i_tile`` of the batch's queries belongs to, and the first of its queries in the tile.

    Request r owns the tiles from ``query_start_loc[r] // BQ + r`` on. Those are at least as many as its queries fill,
    and ``num_tokens // BQ + num_requests`` in all, a number that the host knows without asking the device. In a tile
    too many, the first query is past the request's last.
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
    """The rows of a tile: every head of the group for each of its queries.

    Returns:
        Of each of the BM rows the query (of the request) and the head, and which rows count. Those that do not repeat
        the tile's last query, so that they too have a key to attend to and no place needs to treat them differently.
    """
    o_row = tl.arange(0, BM)
    last_query = tl.minimum(first_query + BQ, query_len) - 1
    o_query = first_query + o_row // GROUP
    m_row = (o_row < BQ * GROUP) & (o_query <= last_query)
    return tl.minimum(o_query, last_query), i_kv_head * GROUP + o_row % GROUP, m_row


@triton.jit
def blocks_of_keys(o_key, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which of its request's blocks each key is in. Unsigned: a division that may be of less than 0 takes longer."""
    return o_key.to(tl.uint32) // BLOCK_SIZE


@triton.jit
def offsets_of_keys(b_block, o_key, stride_block, stride_token, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where keys (or values) begin in a cache, in elements; int64, for a cache has more than 2^31 of them.

    Args:
        b_block: the physical block of each.
        o_key: the place of each in its request.
    """
    return _offset(b_block, stride_block) + _offset(o_key.to(tl.uint32) % BLOCK_SIZE, stride_token)


@triton.jit
def _offset(b_number, stride):  # type: ignore[no-untyped-def]
    """A product of two numbers that are not below 0, int64: one instruction, if no sign has to be carried."""
    if stride.dtype == tl.int32:
        stride = stride.to(tl.uint32)
    return b_number.to(tl.uint32).to(tl.int64) * stride.to(tl.int64)


@triton.jit
def load_rows(p_row, m_row, HEAD_DIM: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows of ``HEAD_DIM`` numbers from the addresses given, ``[rows, BD]``, zero in rows and columns that are not."""
    o_dim = tl.arange(0, BD)
    return tl.load(p_row[:, None] + o_dim[None, :], mask=m_row[:, None] & (o_dim < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def load_queries(  # type: ignore[no-untyped-def]
    p_query, token, o_head, m_row, stride_query_token, stride_query_head, HEAD_DIM: tl.constexpr, BD: tl.constexpr
):
    """Rows of queries ``[BM, BD]``, zero in rows that do not count.

    Args:
        token: where a lone query stands in its batch, or that of each row ``[BM]``.
        o_head: of each row ``[BM]``.
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
    """A product summed in float32. Three products of tf32 make one of float32; for narrower types nothing changes."""
    return tl.dot(b_rows, b_columns, b_acc, input_precision="tf32x3")


@triton.jit
def repeated(b_rows, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows ``[BR, N]`` again and again, ``[BM, N]``."""
    BR: tl.constexpr = b_rows.shape[0]
    N: tl.constexpr = b_rows.shape[1]
    if BR != BM:
        b_rows = tl.reshape(tl.broadcast_to(b_rows[None, :, :], [BM // BR, BR, N]), [BM, N])
    return b_rows


@triton.jit
def attend(b_scores, b_values, b_acc, b_max, b_sum):  # type: ignore[no-untyped-def]
    """Take a tile of keys into a running softmax. It is kept in base 2, where an exponential is one instruction.

    A product takes 16 rows where a group may have 4 heads. Those are repeated for it, and all before is done once.

    Args:
        b_scores: base-2 logits ``[BR, BN]``, minus infinity for what is masked.
        b_values: ``[BN, BD]``.
        b_acc: weighted values so far ``[BM, BD]``, BM a multiple of BR.
        b_max, b_sum: largest score and sum of weights so far ``[BR]``.
    """
    BM: tl.constexpr = b_acc.shape[0]
    b_new_max = tl.maximum(b_max, tl.max(b_scores, 1))
    b_decay = tl.exp2(b_max - b_new_max)
    b_weights = tl.exp2(b_scores - b_new_max[:, None])
    b_acc = dot(repeated(b_weights.to(b_values.dtype), BM), b_values, b_acc * repeated(b_decay[:, None], BM))
    return b_acc, b_new_max, b_sum * b_decay + tl.sum(b_weights, 1)

"""Triton: divides a lone query's keys into chunks for several programs, and merges what the programs found.

The chunks of a request depend only on its own keys. Other requests in the batch change which program takes a chunk, but
never the order of sums. So a request's output is the same, to the bit, in every batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.encodings.far_pages import KEYS_AT_A_TIME
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.paged_tiles import load_rows, store_rows

MAX_CHUNKS = 32  # the most chunks of a query and KV head: with eight KV heads, one request fills an H100 twice
MIN_CHUNK = 256  # keys; for a smaller chunk, storing and merging the results costs as much as computing them
TILE = KEYS_AT_A_TIME


@triton.jit
def chunk_size(num_keys, MAX_CHUNKS: tl.constexpr, MIN_CHUNK: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The number of keys in each chunk. The newest chunk may be smaller."""
    return tl.maximum(MIN_CHUNK, tl.cdiv(tl.cdiv(num_keys, MAX_CHUNKS), TILE) * TILE)


@dataclasses.dataclass(frozen=True)
class Partials:
    """The results of a batch's chunks, before they are merged.

    Attributes:
        acc: float32 ``[num_requests, num_heads, room, head_dim]``, weighted values.
        sums: float32 ``[num_requests, num_heads, room, 2]``, largest base-2 logit and sum of weights.
        max_chunks: the most chunks that a query and KV head may have.
    """

    acc: Tensor
    sums: Tensor
    max_chunks: int

    @classmethod
    def empty(cls, query: Tensor, batch: PagedBatch, max_chunks: int) -> Partials:
        rows = (len(batch), query.shape[1], room(batch, max_chunks))
        acc = torch.empty(*rows, query.shape[2], dtype=torch.float32, device=query.device)
        sums = torch.empty(*rows, 2, dtype=torch.float32, device=query.device)
        return cls(acc, sums, max_chunks)

    @property
    def room(self) -> int:
        """A number of chunks that no request exceeds."""
        return self.acc.shape[2]

    def arguments(self) -> dict[str, Any]:
        return {"p_acc": self.acc, "p_sums": self.sums, "room": self.room}


def room(batch: PagedBatch, max_chunks: int) -> int:
    """A number of chunks that no request of the batch exceeds."""
    return max(1, min(max_chunks, -(-batch.max_seq_len // MIN_CHUNK)))


def largest(batch: PagedBatch, max_chunks: int) -> int:
    """A number of keys that no chunk of the batch exceeds: see ``chunk_size``."""
    return max(MIN_CHUNK, -(-batch.max_seq_len // (max_chunks * TILE)) * TILE)


def sizes(max_chunks: int) -> dict[str, int]:
    return {"MAX_CHUNKS": max_chunks, "MIN_CHUNK": MIN_CHUNK, "TILE": TILE}


@triton.jit
def store_partial(  # type: ignore[no-untyped-def]
    b_acc, b_max, b_sum, p_acc, p_sums, o_row, m_row, i_chunk, room, HEAD_DIM: tl.constexpr, BD: tl.constexpr
):
    """Store the results of a chunk.

    Args:
        o_row: ``request * num_heads + head`` of each row ``[BM]``.
    """
    o_partial = o_row.to(tl.int64) * room + i_chunk
    store_rows(p_acc + o_partial * HEAD_DIM, b_acc, m_row, HEAD_DIM, BD)
    tl.store(p_sums + 2 * o_partial, b_max, mask=m_row)
    tl.store(p_sums + 2 * o_partial + 1, b_sum, mask=m_row)


@triton.jit(do_not_specialize=["room"])
def _merge_kernel(  # type: ignore[no-untyped-def]
    p_acc,
    p_sums,
    p_first_keys,  # int32 [num_requests, num_kv_heads]; None if chunks begin at key 0
    p_num_items,  # Window.num_items, or None without a window
    p_query_start_loc,
    p_seq_lens,
    p_out,
    stride_out_token,
    stride_out_head,
    room,
    after,  # requests of at most this many tokens are left as they are; None for none
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BD: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    i_request = tl.program_id(0)
    i_head = tl.program_id(1)
    if p_num_items is not None and (i_request == 0) & (i_head == 0):
        tl.store(p_num_items, 0)
    query = tl.load(p_query_start_loc + i_request)
    if tl.load(p_query_start_loc + i_request + 1) - query != 1:
        return
    num_keys = tl.load(p_seq_lens + i_request)
    if after is not None and num_keys <= after:
        return
    if p_first_keys is not None:
        num_keys -= tl.load(p_first_keys + i_request * (tl.num_programs(1) // GROUP) + i_head // GROUP)
    o_chunk = tl.arange(0, MAX_CHUNKS)
    m_chunk = o_chunk < tl.cdiv(num_keys, chunk_size(num_keys, MAX_CHUNKS, MIN_CHUNK, TILE))
    o_partial = (i_request.to(tl.int64) * tl.num_programs(1) + i_head) * room + o_chunk
    # All loads are issued before any result is used, so that the program waits only once.
    b_acc = load_rows(p_acc + o_partial * HEAD_DIM, m_chunk, HEAD_DIM, BD)  # [MAX_CHUNKS, BD]
    b_max = tl.load(p_sums + 2 * o_partial, mask=m_chunk, other=-float("inf"))
    b_sum = tl.load(p_sums + 2 * o_partial + 1, mask=m_chunk, other=0.0)
    b_share = tl.exp2(b_max - tl.max(b_max, 0))
    b_out = tl.sum(b_acc * b_share[:, None], 0) / tl.sum(b_share * b_sum, 0)
    o_dim = tl.arange(0, BD)
    p_row = p_out + query.to(tl.int64) * stride_out_token + i_head * stride_out_head
    tl.store(p_row + o_dim, b_out.to(p_out.dtype.element_ty), mask=o_dim < HEAD_DIM)


def merge(
    partials: Partials,
    first_keys: Tensor | None,
    num_items: Tensor | None,
    batch: PagedBatch,
    num_kv_heads: int,
    out: Tensor,
    after: int | None = None,
) -> None:
    """Write the outputs of all requests with one query.

    Args:
        first_keys: int32 ``[num_requests, num_kv_heads]``, the key at which chunks begin; None for key 0.
        num_items: ``Window.num_items``, which is set back to 0; None without a window.
        after: requests of at most this many tokens had no chunks, and are left as they are. None leaves none out.
    """
    _, num_heads, head_dim = out.shape
    _merge_kernel[(len(batch), num_heads)](
        p_first_keys=first_keys,
        p_num_items=num_items,
        p_query_start_loc=batch.query_start_loc,
        p_seq_lens=batch.seq_lens,
        p_out=out,
        stride_out_token=out.stride(0),
        stride_out_head=out.stride(1),
        after=after,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BD=1 << (head_dim - 1).bit_length(),
        num_warps=8,
        **partials.arguments(),
        **sizes(partials.max_chunks),
    )

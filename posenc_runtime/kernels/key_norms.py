"""Triton: the norms of keys that are being cached, for the bound of ``window``."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_ROWS = 32  # keys of a program
_NORMS = 1024  # of a program that takes running maxima


@triton.jit(do_not_specialize=["num_slots"])
def _store_norms_kernel(  # type: ignore[no-untyped-def]
    p_key_norms,
    p_keys,
    p_slot_mapping,
    num_slots,
    stride_norm_block,
    stride_norm_head,
    stride_key_token,
    stride_key_head,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BT: tl.constexpr,  # tokens
    BD: tl.constexpr,  # at least HEAD_DIM
):
    o_token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    i_head = tl.program_id(1).to(tl.int64)
    b_slot = tl.load(p_slot_mapping + o_token, mask=o_token < num_slots, other=-1)
    m_token = b_slot >= 0
    o_dim = tl.arange(0, BD)
    p_row = p_keys + o_token * stride_key_token + i_head * stride_key_head
    b_keys = tl.load(
        p_row[:, None] + o_dim[None, :], mask=m_token[:, None] & (o_dim < HEAD_DIM)[None, :], other=0.0
    ).to(tl.float32)
    b_norm = tl.sqrt(tl.sum(b_keys * b_keys, 1))
    b_slot = tl.where(m_token, b_slot, 0)
    o_norm = b_slot // BLOCK_SIZE * stride_norm_block + i_head * stride_norm_head + b_slot % BLOCK_SIZE
    tl.store(p_key_norms + o_norm, b_norm, mask=m_token)


@triton.jit
def _larger(one, other):  # type: ignore[no-untyped-def]
    return tl.maximum(one, other)


@triton.jit(do_not_specialize=["num_kv_heads"])
def _running_maximum_kernel(  # type: ignore[no-untyped-def]
    p_key_norms,
    p_slot_mapping,
    num_kv_heads,
    stride_norm_block,
    stride_norm_head,
    BLOCK_SIZE: tl.constexpr,
    BH: tl.constexpr,  # KV heads
    BB: tl.constexpr,  # at least BLOCK_SIZE
):
    i_token = tl.program_id(0)
    slot = tl.load(p_slot_mapping + i_token)
    before = tl.load(p_slot_mapping + tl.maximum(i_token - 1, 0))
    is_taken = (i_token > 0) & (before >= 0) & (before // BLOCK_SIZE == slot // BLOCK_SIZE)
    if (slot < 0) | is_taken:
        return
    o_head = tl.program_id(1).to(tl.int64) * BH + tl.arange(0, BH)
    o_slot = tl.arange(0, BB)
    p_norm = p_key_norms + slot // BLOCK_SIZE * stride_norm_block + o_head[:, None] * stride_norm_head + o_slot[None, :]
    m_norm = (o_head < num_kv_heads)[:, None] & (o_slot < BLOCK_SIZE)[None, :]
    b_norm = tl.load(p_norm, mask=m_norm, other=0.0)
    tl.store(p_norm, tl.associative_scan(b_norm, 1, _larger), mask=m_norm)


def record_key_norms(key_norms: Tensor, keys: Tensor, slot_mapping: Tensor) -> None:
    """See ``window.record_key_norms``. All tensors on one CUDA device.

    Tokens of one launch may share a block, and a running maximum needs the norms of all of them. So a first launch
    stores norms as they are, each in a slot of its own, and a second one, which the stream starts when the first is
    done, takes the maxima. There the first of a block's tokens takes them for the others. Should a block come up twice,
    with other blocks' tokens between, two programs write the same numbers in either order: the running maximum of
    entries, some of which have been replaced by their running maximum, is the running maximum.

    Args:
        keys: of the cache's data type: a norm bounds the key as it is stored.
        slot_mapping: int64.

    Raises:
        ValueError: when keys or norms are not contiguous in their last dimension.
    """
    if keys.stride(2) != 1 or key_norms.stride(2) != 1:
        raise ValueError(f"the last stride must be 1, got {keys.stride(2)} of keys and {key_norms.stride(2)} of norms")
    num_slots, num_kv_heads = slot_mapping.shape[0], keys.shape[1]
    if not num_slots:
        return
    block_size = key_norms.shape[2]
    strides = {"stride_norm_block": key_norms.stride(0), "stride_norm_head": key_norms.stride(1)}
    _store_norms_kernel[(triton.cdiv(num_slots, _ROWS), num_kv_heads)](
        p_key_norms=key_norms,
        p_keys=keys,
        p_slot_mapping=slot_mapping,
        num_slots=num_slots,
        stride_key_token=keys.stride(0),
        stride_key_head=keys.stride(1),
        HEAD_DIM=keys.shape[2],
        BLOCK_SIZE=block_size,
        BT=_ROWS,
        BD=triton.next_power_of_2(keys.shape[2]),
        **strides,
    )
    entries = triton.next_power_of_2(block_size)
    heads = min(triton.next_power_of_2(num_kv_heads), max(1, _NORMS // entries))
    _running_maximum_kernel[(num_slots, triton.cdiv(num_kv_heads, heads))](
        p_key_norms=key_norms,
        p_slot_mapping=slot_mapping,
        num_kv_heads=num_kv_heads,
        BLOCK_SIZE=block_size,
        BH=heads,
        BB=entries,
        num_warps=1,
        **strides,
    )

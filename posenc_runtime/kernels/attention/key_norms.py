"""Triton: records the norms of keys that are being cached, for the bound of ``window``."""

from __future__ import annotations

import functools

import triton
import triton.language as tl
from torch import Tensor

_ROWS = 32  # tokens times KV heads of a program
_NORMS = 1024  # norms of a program that takes running maxima


@triton.jit(do_not_specialize=["num_slots", "num_kv_heads"])
def _store_norms_kernel(  # type: ignore[no-untyped-def]
    p_key_norms,
    p_keys,
    p_slot_mapping,
    num_slots,
    num_kv_heads,
    stride_norm_block,
    stride_norm_head,
    stride_norm_slot,
    stride_key_token,
    stride_key_head,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BR: tl.constexpr,  # rows, the heads of a token beside each other
    BD: tl.constexpr,  # at least HEAD_DIM
):
    o_row = tl.program_id(0) * BR + tl.arange(0, BR)
    o_token, o_head = (o_row // num_kv_heads).to(tl.int64), (o_row % num_kv_heads).to(tl.int64)
    b_slot = tl.load(p_slot_mapping + o_token, mask=o_token < num_slots, other=-1)
    m_row = b_slot >= 0
    o_dim = tl.arange(0, BD)
    p_row = p_keys + o_token * stride_key_token + o_head * stride_key_head
    b_keys = tl.load(p_row[:, None] + o_dim[None, :], mask=m_row[:, None] & (o_dim < HEAD_DIM)[None, :], other=0.0)
    b_keys = b_keys.to(tl.float32)
    b_norm = tl.sqrt(tl.sum(b_keys * b_keys, 1))
    b_slot = tl.where(m_row, b_slot, 0)
    o_norm = b_slot // BLOCK_SIZE * stride_norm_block + o_head * stride_norm_head
    tl.store(p_key_norms + o_norm + b_slot % BLOCK_SIZE * stride_norm_slot, b_norm, mask=m_row)


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
    stride_norm_slot,
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
    o_norm = o_head[:, None] * stride_norm_head + o_slot[None, :] * stride_norm_slot
    p_norm = p_key_norms + slot // BLOCK_SIZE * stride_norm_block + o_norm
    m_norm = (o_head < num_kv_heads)[:, None] & (o_slot < BLOCK_SIZE)[None, :]
    b_norm = tl.load(p_norm, mask=m_norm, other=0.0)
    tl.store(p_norm, tl.associative_scan(b_norm, 1, _larger), mask=m_norm)


def record_key_norms(key_norms: Tensor, keys: Tensor, slot_mapping: Tensor) -> None:
    """See ``window.record_key_norms``. All tensors are on one CUDA device.

    Tokens of one launch may share a block, and a running maximum needs the norms of all of them. So a first launch
    stores each norm in its slot, and a second launch, which the stream starts after the first, takes the maxima. In the
    second launch, only the program of a block's first token works. If the tokens of a block are not adjacent, two
    programs take the same maxima. They write the same numbers in either order, because a running maximum of entries
    does not change when some of them have been replaced by their running maximum.

    Args:
        keys: in the cache's data type, because the norm must bound the key as it is stored.
        slot_mapping: int64.

    Raises:
        ValueError: when keys are not contiguous in their last dimension.
    """
    if keys.stride(2) != 1:
        raise ValueError(f"the last stride of keys must be 1, got {keys.stride(2)}")
    num_slots, num_kv_heads = slot_mapping.shape[0], keys.shape[1]
    if not num_slots:
        return
    of_norms, of_maxima, heads = _constants(key_norms.stride(), key_norms.shape[2], num_kv_heads, keys.shape[2])
    _store_norms_kernel[(triton.cdiv(num_slots * num_kv_heads, _ROWS),)](
        p_key_norms=key_norms,
        p_keys=keys,
        p_slot_mapping=slot_mapping,
        num_slots=num_slots,
        stride_key_token=keys.stride(0),
        stride_key_head=keys.stride(1),
        **of_norms,
    )
    _running_maximum_kernel[(num_slots, triton.cdiv(num_kv_heads, heads))](
        p_key_norms=key_norms, p_slot_mapping=slot_mapping, **of_maxima
    )


@functools.lru_cache(maxsize=16)
def _constants(
    strides: tuple[int, ...], block_size: int, num_kv_heads: int, head_dim: int
) -> tuple[dict[str, int], dict[str, int], int]:
    """The constant arguments of both kernels, and the number of heads that a program of the second kernel takes."""
    names = ("stride_norm_block", "stride_norm_head", "stride_norm_slot")
    shared = dict(zip(names, strides, strict=True)) | {"num_kv_heads": num_kv_heads, "BLOCK_SIZE": block_size}
    entries = triton.next_power_of_2(block_size)
    heads = min(triton.next_power_of_2(num_kv_heads), max(1, _NORMS // entries))
    return (
        shared | {"HEAD_DIM": head_dim, "BR": _ROWS, "BD": triton.next_power_of_2(head_dim)},
        shared | {"BH": heads, "BB": entries, "num_warps": 1},
        heads,
    )

"""Triton: the row of each token in the stacked table, looked up by slot, in one launch where torch needs five."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TILE = 256


# The numbers of tokens and slots change from step to step, and a new number must not recompile the kernel.
@triton.jit(do_not_specialize=["num_tokens", "num_slots"])
def _rope_rows_kernel(  # type: ignore[no-untyped-def]
    p_positions,
    p_slot_mapping,
    p_block_row_offset,
    p_rows,
    num_tokens,
    num_slots,
    BLOCK_SIZE: tl.constexpr,
    BT: tl.constexpr,
):
    o_token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    m_token = o_token < num_tokens
    b_slot = tl.load(p_slot_mapping + o_token, mask=o_token < tl.minimum(num_tokens, num_slots), other=-1)
    b_block = tl.where(b_slot < 0, 0, b_slot // BLOCK_SIZE)
    b_offset = tl.load(p_block_row_offset + b_block)
    b_position = tl.load(p_positions + o_token, mask=m_token, other=0)
    tl.store(p_rows + o_token, b_position + b_offset, mask=m_token)


def rope_rows(positions: Tensor, slot_mapping: Tensor, block_row_offset: Tensor, block_size: int, out: Tensor) -> None:
    """See ``reference.rope_rows``. All tensors are on one CUDA device, int64 and contiguous."""
    num_tokens = positions.shape[0]
    if num_tokens:
        grid = (triton.cdiv(num_tokens, _TILE),)
        _rope_rows_kernel[grid](
            positions,
            slot_mapping,
            block_row_offset,
            out,
            num_tokens,
            slot_mapping.shape[0],
            BLOCK_SIZE=block_size,
            BT=_TILE,
        )

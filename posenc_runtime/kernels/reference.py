"""The torch twin of every kernel, with the same signature. The reference is the specification."""

from __future__ import annotations

from torch import Tensor


def rope_rows(positions: Tensor, slot_mapping: Tensor, block_row_offset: Tensor, block_size: int) -> Tensor:
    """Row of each token in the stacked table: its position, plus the first row of its block's scale.

    Args:
        positions: int64 ``[num_tokens]``.
        slot_mapping: int64 ``[at least 0]``; -1 for a token that is not written. Tokens past its end are padding.
        block_row_offset: int64 ``[num_blocks]``, first row of the scale that each physical block carries.
        block_size: tokens per block.

    Returns:
        int64 ``[num_tokens]``. Tokens without a slot take block 0, which is never written and so is unscaled.
    """
    num_tokens = positions.shape[0]
    block_ids = slot_mapping[:num_tokens].div(block_size, rounding_mode="floor").clamp_(min=0)
    rows = positions.clone()
    rows[: block_ids.shape[0]] += block_row_offset[block_ids]
    return rows

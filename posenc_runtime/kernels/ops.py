"""Which implementation runs: Triton on CUDA where there is a kernel, torch elsewhere. Triton is imported late."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from posenc_runtime.kernels import reference, rerotate_blocks
from posenc_runtime.kernels.key_layout import BlockMoves, KeyLayout
from posenc_runtime.kernels.scale_change import ScaleChange


def rope_rows(positions: Tensor, slot_mapping: Tensor, block_row_offset: Tensor, block_size: int) -> Tensor:
    """See ``reference.rope_rows``."""
    if positions.is_cuda:
        from posenc_runtime.kernels.rope_rows import rope_rows as kernel

        return kernel(positions, slot_mapping, block_row_offset, block_size)
    return reference.rope_rows(positions, slot_mapping, block_row_offset, block_size)


def rerotate(kv_caches: Sequence[Tensor], moves: BlockMoves, change: ScaleChange, layout: KeyLayout) -> None:
    """See ``reference.rerotate``."""
    rerotate_blocks.rerotate(kv_caches, moves, change, layout)

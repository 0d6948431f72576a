"""Which implementation runs: the kernel on CUDA, torch elsewhere. Triton is imported only where it runs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from posenc_runtime.kernels import reference, rerotate_torch
from posenc_runtime.kernels.rerotation import BlockMoves, KeyLayout, ScaleChange


def rope_rows(positions: Tensor, slot_mapping: Tensor, block_row_offset: Tensor, block_size: int) -> Tensor:
    """See ``reference.rope_rows``."""
    if positions.is_cuda:
        from posenc_runtime.kernels.rope_rows import rope_rows as kernel

        return kernel(positions, slot_mapping, block_row_offset, block_size)
    return reference.rope_rows(positions, slot_mapping, block_row_offset, block_size)


def rerotate(kv_caches: Sequence[Tensor], moves: BlockMoves, change: ScaleChange, layout: KeyLayout) -> None:
    """See ``reference.rerotate``."""
    layout.check(kv_caches)
    if not kv_caches or not len(moves):
        return
    if kv_caches[0].is_cuda:
        from posenc_runtime.kernels.rerotate import rerotate as kernel

        kernel(kv_caches, moves, change, layout)
    else:
        rerotate_torch.rerotate(kv_caches, moves, change, layout)

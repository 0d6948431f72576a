"""Which implementation runs: the kernel on CUDA, its reference elsewhere. Triton is imported only where it runs."""

from __future__ import annotations

from torch import Tensor

from posenc_runtime.kernels import reference


def rope_rows(positions: Tensor, slot_mapping: Tensor, block_row_offset: Tensor, block_size: int) -> Tensor:
    """See ``reference.rope_rows``."""
    if positions.is_cuda:
        from posenc_runtime.kernels.rope_rows import rope_rows as kernel

        return kernel(positions, slot_mapping, block_row_offset, block_size)
    return reference.rope_rows(positions, slot_mapping, block_row_offset, block_size)

"""The data that rotates a token: the frequencies of every scale, and the scale that each block carries."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.kernels.rotary.phases import phases


@dataclasses.dataclass(frozen=True)
class RotaryScales:
    """The rotations of one kind of layers. Tensors are contiguous, on the device of the caches.

    ``block_scale`` gives the number of a block's scale; the stacked table's ``block_row_offset`` gives the first row of
    that scale. The code that gives out blocks writes both for the same blocks. Neither is computed from the other, so
    that a deployment which rotates by table does not need this class.

    Attributes:
        phases: int64 ``[num_scales, rotary_dim // 2]``, 2^-64 turns / token (``phases.phases``).
        attention_factor: float32 ``[num_scales]``.
        block_scale: int32 or int64 ``[num_blocks]``, number of the scale that each physical block carries. It must only
            be written in place, because captured CUDA graphs hold its address. Its values are not checked, because
            that would wait for the device.
        block_size: tokens per block of ``block_scale``. The cache's own blocks may be smaller or larger, because the
            number of a slot does not depend on the block size.
        is_neox_style: whether a pair is one element of each half of the rotated part (True) or two neighbours (False).
        factor_on_keys: with False, keys are pure rotations and queries get the square of the attention factor. Scores
            are then the same, and a re-rotation only changes angles. With True, keys and queries both get the factor,
            and keys have the bytes that table-based engines cache and exchange.

    Raises:
        ValueError: when data types, shapes or strides differ from those above.
    """

    phases: Tensor
    attention_factor: Tensor
    block_scale: Tensor
    block_size: int
    is_neox_style: bool
    factor_on_keys: bool = False

    def __post_init__(self) -> None:
        if self.phases.dtype != torch.int64 or self.phases.dim() != 2 or not self.phases.numel():
            raise ValueError(
                "phases must be int64 [num_scales, rotary_dim // 2] of at least one scale and one pair, "
                f"got {self.phases.dtype} {list(self.phases.shape)}"
            )
        num_scales = self.phases.shape[0]
        if self.attention_factor.dtype != torch.float32 or self.attention_factor.shape != (num_scales,):
            raise ValueError(
                f"attention_factor must be float32 [{num_scales}], one for each scale, "
                f"got {self.attention_factor.dtype} {list(self.attention_factor.shape)}"
            )
        if self.block_scale.dtype not in (torch.int32, torch.int64) or self.block_scale.dim() != 1:
            raise ValueError(
                "block_scale must be int32 or int64 [num_blocks], "
                f"got {self.block_scale.dtype} {list(self.block_scale.shape)}"
            )
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}")
        for field in ("phases", "attention_factor", "block_scale"):
            if not getattr(self, field).is_contiguous():
                raise ValueError(f"{field} must be contiguous, got strides {getattr(self, field).stride()}")

    @classmethod
    def of(
        cls,
        frequencies: Sequence[Frequencies],
        block_scale: Tensor,
        block_size: int,
        is_neox_style: bool,
        factor_on_keys: bool = False,
    ) -> RotaryScales:
        """Build the rotations of several scales, on the device of ``block_scale``.

        Frequencies are rounded to float32 first, as in tables (``encodings.table.cos_sin_cache``).

        Args:
            frequencies: of each scale; the number of a scale is its index in here.
        """
        return cls(
            torch.stack([phases(of_scale.inv_freq) for of_scale in frequencies]).to(block_scale.device),
            torch.tensor(
                [of_scale.attention_factor for of_scale in frequencies], dtype=torch.float32, device=block_scale.device
            ),
            block_scale,
            block_size,
            is_neox_style,
            factor_on_keys,
        )

    @property
    def rotary_dim(self) -> int:
        """Width of a head's rotated part, which comes first."""
        return 2 * self.phases.shape[1]

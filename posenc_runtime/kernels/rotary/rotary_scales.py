"""What rotates a token, as data: the frequencies of every scale, and the scale that each block carries."""

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

    ``block_scale`` holds the number of a scale where the stacked table's ``block_row_offset`` holds its first row.
    Whoever hands blocks out fills both for the same blocks; neither is computed from the other, so deployments that
    rotate by table go on without this one.

    Attributes:
        phases: int64 ``[num_scales, rotary_dim // 2]``, 2^-64 turns / token (``phases.phases``).
        attention_factor: float32 ``[num_scales]``.
        block_scale: int32 or int64 ``[num_blocks]``, number of the scale that each physical block carries. Written in
            place only: captured CUDA graphs hold its address. What it holds is not checked, for that would wait for
            the device.
        block_size: tokens per block of ``block_scale``. A cache may be cut into smaller or larger blocks, for slots
            are counted alike in all of them.
        is_neox_style: pairs are the two halves of the rotated part (True) or neighbours (False).
        factor_on_keys: False keeps keys pure rotations and gives queries the square of the attention factor, so that
            scores are the same and a re-rotation changes angles alone. True puts the factor on both, the bytes that
            table-based engines cache and exchange.

    Raises:
        ValueError: when they do not go together.
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
        """The rotations of scales whose numbers are their places in ``frequencies``, on the device of ``block_scale``.

        Frequencies are rounded to float32 first, as they are in tables (``encodings.table.cos_sin_cache``).
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
        """Width of a head's rotated part, the first of the head."""
        return 2 * self.phases.shape[1]

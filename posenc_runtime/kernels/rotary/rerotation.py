"""A re-rotation as data: how a block stores keys, which blocks move, and by which angles keys turn."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.kernels.rotary.phases import phases

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclasses.dataclass(frozen=True)
class KeyLayout:
    """How a paged cache stores keys. A layer's cache is ``[num_blocks, num_kv_heads, block_size, row_dim]``.

    Attributes:
        block_size: tokens per block.
        head_dim: width of a head's key.
        rotary_dim: width of the key's rotated part; even.
        is_neox_style: whether a pair is one element of each half of the rotated part (True) or two neighbours (False).
        order: None if keys are ``cache[..., :head_dim]`` and values the rest, at any strides. For vLLM's CPU backend,
            int64 ``[block_size * head_dim]``. The cache is then contiguous, the keys of a block's head come before its
            values, and element ``(token, dim)`` of them lies at ``order[token * head_dim + dim]``.
        rotary_offset: where in the key its rotated part begins. 512 for MLA, whose key is a latent of 512 and a rotated
            part of 64.
        row_dim: width of a key and its value. 0, the default, becomes ``2 * head_dim``. ``head_dim`` for MLA, which
            caches no values.

    Raises:
        ValueError: when a value is out of range, or ``order`` is no permutation.
    """

    block_size: int
    head_dim: int
    rotary_dim: int
    is_neox_style: bool
    order: Tensor | None = None
    rotary_offset: int = 0
    row_dim: int = 0

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}")
        if self.rotary_dim % 2 or not 2 <= self.rotary_dim <= self.head_dim:
            raise ValueError(f"rotary_dim must be even and in [2, {self.head_dim}], got {self.rotary_dim}")
        if not 0 <= self.rotary_offset <= self.head_dim - self.rotary_dim:
            raise ValueError(
                f"rotary_offset must be in [0, {self.head_dim - self.rotary_dim}] (head_dim - rotary_dim), "
                f"got {self.rotary_offset}"
            )
        if not self.row_dim:
            object.__setattr__(self, "row_dim", 2 * self.head_dim)
        if self.row_dim < self.head_dim:
            raise ValueError(f"row_dim must be at least {self.head_dim} (head_dim), got {self.row_dim}")
        if self.order is not None:
            self._check_order(self.order)

    def _check_order(self, order: Tensor) -> None:
        num_elements = self.block_size * self.head_dim
        if order.dtype != torch.int64 or order.shape != (num_elements,):
            raise ValueError(
                f"order must be int64 [{num_elements}] (block_size * head_dim), got {order.dtype} {list(order.shape)}"
            )
        if not torch.equal(order.sort().values.cpu(), torch.arange(num_elements)):
            raise ValueError(
                f"order must hold every number below {num_elements} once, because it says where each element lies"
            )

    def check(self, kv_caches: Iterable[Tensor]) -> None:
        """Refuse caches that are not stored this way.

        Raises:
            ValueError: when a cache has another layout or data type; the message names the layer.
        """
        for layer, cache in enumerate(kv_caches):
            if cache.dim() != 4 or cache.shape[2:] != (self.block_size, self.row_dim):
                raise ValueError(
                    f"a cache must be [num_blocks, num_kv_heads, {self.block_size}, {self.row_dim}], "
                    f"got {list(cache.shape)} at layer {layer}"
                )
            if cache.dtype not in DTYPES:
                raise ValueError(
                    f"a cache must be float32, bfloat16 or float16, got {cache.dtype} at layer {layer}: "
                    "a quantised cache cannot be re-rotated"
                )
            if self.order is not None and not cache.is_contiguous():
                raise ValueError(
                    f"a cache with an order must be contiguous, got strides {cache.stride()} at layer {layer}"
                )


@dataclasses.dataclass(frozen=True)
class BlockMoves:
    """Which blocks are re-rotated; all int64 ``[num_moves]``, on the device of the caches.

    A block that is source and target of the same move is rotated in place. Otherwise a source may have several targets,
    but no block may be the source of one move and the target of another, or the target of two, because moves are made
    in no particular order.

    Attributes:
        sources: physical block that is read.
        targets: physical block that is written.
        first_positions: position of the block's first token.

    Raises:
        ValueError: when the tensors have different lengths, or another data type.
    """

    sources: Tensor
    targets: Tensor
    first_positions: Tensor

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            values = getattr(self, field.name)
            if values.dtype != torch.int64 or values.shape != (len(self),):
                raise ValueError(
                    f"{field.name} must be int64 [{len(self)}], one for each source, "
                    f"got {values.dtype} {list(values.shape)}"
                )

    def __len__(self) -> int:
        return self.sources.numel()


@dataclasses.dataclass(frozen=True)
class ScaleChange:
    """By how much keys turn, from one set of frequencies to another.

    An angle is a 64-bit fraction of a turn, and overflow drops whole turns: ``position * phases`` is the exact product,
    modulo one turn. Each frequency is off by at most 2^-65 turns. So the angle of a key at position p is off by at most
    ``p * 2^-64`` turns, which is 4e-13 rad at position 1,048,576. The rounding of float32 sines comes on top.

    Attributes:
        phases: int64 ``[rotary_dim // 2]``, 2^-64 turns / token: the target's frequency minus the source's, modulo one
            turn.
        attention_ratio: the target's attention factor divided by the source's.
    """

    phases: Tensor
    attention_ratio: float = 1.0

    def __post_init__(self) -> None:
        if self.phases.dtype != torch.int64 or self.phases.dim() != 1:
            raise ValueError(
                f"phases must be int64 [rotary_dim // 2], got {self.phases.dtype} {list(self.phases.shape)}"
            )
        if not (math.isfinite(self.attention_ratio) and self.attention_ratio > 0):
            raise ValueError(f"attention_ratio must be finite and greater than 0, got {self.attention_ratio}")

    @classmethod
    def between(cls, source: Frequencies, target: Frequencies, *, factor_on_keys: bool = True) -> ScaleChange:
        """The change that turns keys written with ``source`` into keys written with ``target``.

        Args:
            factor_on_keys: whether cached keys carry the attention factor of their scale. If not, keys are pure
                rotations, and pairs of the same frequency stay as they are, to the bit.

        Frequencies are rounded to float32 first, as in the tables that keys are written with
        (``encodings.table.cos_sin_cache``).
        """
        ratio = target.attention_factor / source.attention_factor if factor_on_keys else 1.0
        return cls(phases(target.inv_freq) - phases(source.inv_freq), ratio)

    @functools.cached_property
    def num_unchanged(self) -> int:
        """Number of pairs before the first one that changes. Waits for the device once, if ``phases`` are on one."""
        changed = self.is_changed().nonzero()
        return int(changed[0]) if changed.numel() else self.phases.numel()

    def is_changed(self) -> Tensor:
        """Which pairs change, bool ``[rotary_dim // 2]``; the others stay as they are, to the bit."""
        return (self.phases != 0) | (self.attention_ratio != 1)


def stored_alike(kv_caches: Iterable[Tensor]) -> list[list[Tensor]]:
    """The caches in groups with the same data type, number of heads and strides: one launch can do a whole group."""
    groups: dict[tuple[object, ...], list[Tensor]] = {}
    for cache in kv_caches:
        groups.setdefault((cache.dtype, cache.shape[1], cache.stride()), []).append(cache)
    return list(groups.values())

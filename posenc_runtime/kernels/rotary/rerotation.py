"""What a re-rotation is, as data: how keys lie in a block, which blocks move, and by which angles keys turn."""

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
    """How a paged cache stores keys. A layer's cache is ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``.

    Attributes:
        block_size: tokens per block.
        head_dim: width of a head; even.
        rotary_dim: width of its rotated part, the first of the head; even.
        is_neox_style: pairs are the two halves of the rotated part (True) or neighbours (False).
        order: None where K is ``cache[..., :head_dim]`` and V the rest, at any strides. For vLLM's CPU backend, int64
            ``[block_size * head_dim]``: the contiguous cache is then
            ``[num_blocks, num_kv_heads, 2, block_size * head_dim]``, keys first, and of a head's keys element
            ``(token, dim)`` lies at ``order[token * head_dim + dim]``.

    Raises:
        ValueError: when a value is out of range, or ``order`` no permutation.
    """

    block_size: int
    head_dim: int
    rotary_dim: int
    is_neox_style: bool
    order: Tensor | None = None

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}")
        if self.rotary_dim % 2 or not 2 <= self.rotary_dim <= self.head_dim:
            raise ValueError(f"rotary_dim must be even and in [2, {self.head_dim}], got {self.rotary_dim}")
        if self.order is None:
            return
        num_elements = self.block_size * self.head_dim
        if self.order.dtype != torch.int64 or self.order.shape != (num_elements,):
            raise ValueError(
                f"order must be int64 [{num_elements}] (block_size * head_dim), "
                f"got {self.order.dtype} {list(self.order.shape)}"
            )
        if not torch.equal(self.order.sort().values.cpu(), torch.arange(num_elements)):
            raise ValueError(f"order must hold every number below {num_elements} once: it says where each element lies")

    def check(self, kv_caches: Iterable[Tensor]) -> None:
        """Refuse caches that are not stored this way.

        Raises:
            ValueError: naming the layer.
        """
        for layer, cache in enumerate(kv_caches):
            if cache.dim() != 4 or cache.shape[2:] != (self.block_size, 2 * self.head_dim):
                raise ValueError(
                    f"a cache must be [num_blocks, num_kv_heads, {self.block_size}, {2 * self.head_dim}], "
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

    A source that is its own target is rotated in place. Otherwise a source may have several targets, but no block is
    the source of one move and the target of another, or the target of two: moves are not made in any order.

    Attributes:
        sources: physical block that is read.
        targets: physical block that is written.
        first_positions: position of the block's first token.

    Raises:
        ValueError: when they do not go together.
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

    An angle is a 64-bit fraction of a turn, and whole turns wrap away: ``position * phases`` is the exact product,
    modulo one turn. Each frequency is rounded to 2^-65 turns, so a key at position p turns by an angle that is wrong by
    at most ``p * 2^-64`` turns, 4e-13 rad at position 1,048,576; what is left is the rounding of float32 sines.

    Attributes:
        phases: int64 ``[rotary_dim // 2]``, 2^-64 turns / token: the target's frequency less the source's, wrapping.
        attention_ratio: attention factor of the target by that of the source.
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
        """The change that takes keys of ``source`` to what they would be at ``target``.

        Args:
            factor_on_keys: whether cached keys carry the attention factor of their scale; otherwise they are pure
                rotations, and pairs of the same frequency stay as they are, to the bit.

        Frequencies are rounded to float32 first, as they are in the tables that keys are written with
        (``encodings.table.cos_sin_cache``).
        """
        ratio = target.attention_factor / source.attention_factor if factor_on_keys else 1.0
        return cls(phases(target.inv_freq) - phases(source.inv_freq), ratio)

    @functools.cached_property
    def num_unchanged(self) -> int:
        """Pairs before the first one whose keys change. Asks the device once, if that is where ``phases`` are."""
        changed = self.is_changed().nonzero()
        return int(changed[0]) if changed.numel() else self.phases.numel()

    def is_changed(self) -> Tensor:
        """Pairs whose keys change at all, bool ``[rotary_dim // 2]``; the others stay as they are, to the bit."""
        return (self.phases != 0) | (self.attention_ratio != 1)


def stored_alike(kv_caches: Iterable[Tensor]) -> list[list[Tensor]]:
    """The caches in groups of one data type, number of heads and strides, so that each group is one piece of work."""
    groups: dict[tuple[object, ...], list[Tensor]] = {}
    for cache in kv_caches:
        groups.setdefault((cache.dtype, cache.shape[1], cache.stride()), []).append(cache)
    return list(groups.values())

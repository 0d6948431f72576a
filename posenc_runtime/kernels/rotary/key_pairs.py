"""Where the two elements of each rotary pair lie in a block, in the order of memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc_runtime.kernels.rotary.rerotation import FLOAT8, KeyLayout


@dataclasses.dataclass(frozen=True)
class StridedPairs:
    """Pairs whose elements are reached by strides alone.

    Attributes:
        tokens, pairs: int64 ``[num]``, token and pair at each place, in the order of memory.
        shape, strides: where the first elements of the pairs lie in one head of a block, in elements.
        start: offset of the first of them, in elements.
        distance: from the first element of a pair to the second, in elements.
    """

    tokens: Tensor
    pairs: Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    distance: int

    def within(self, cache: Tensor) -> Tensor:
        """A view of the pairs' elements in a cache, ``[num_blocks, num_kv_heads, 2, *shape]``."""
        return cache.as_strided(
            (*cache.shape[:2], 2, *self.shape),
            (*cache.stride()[:2], self.distance, *self.strides),
            cache.storage_offset() + self.start,
        )

    def read(self, part: Tensor, elements: Tensor) -> None:
        """Copy some blocks of ``within`` to ``[num_blocks, num_kv_heads, 2, *shape]``."""
        elements.copy_(part.contiguous() if part.dtype in FLOAT8 else part)

    def write(self, part: Tensor, elements: Tensor) -> None:
        """The reverse of ``read``."""
        # torch casts float8 several times as fast where it does not have to follow strides as well.
        part.copy_(elements.to(part.dtype) if part.dtype in FLOAT8 else elements)


@dataclasses.dataclass(frozen=True)
class ScatteredPairs:
    """Pairs whose elements no strides reach, so that each needs its own offset. That takes several times as long.

    Attributes:
        tokens, pairs: int64 ``[num]``, token and pair at each place, in the order of memory.
        offsets: int64 ``[2, num]``, of the first and of the second elements, from the start of a head.
    """

    tokens: Tensor
    pairs: Tensor
    offsets: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.tokens.numel(),)

    def within(self, cache: Tensor) -> Tensor:
        """A view of each head of a cache up to the last pair's element, ``[num_blocks, num_kv_heads, width]``."""
        return cache.as_strided((*cache.shape[:2], int(self.offsets.max()) + 1), (*cache.stride()[:2], 1))

    def read(self, part: Tensor, elements: Tensor) -> None:
        """Copy some blocks of ``within`` to ``[num_blocks, num_kv_heads, 2, *shape]``."""
        elements.copy_(part[..., self.offsets])

    def write(self, part: Tensor, elements: Tensor) -> None:
        """The reverse of ``read``."""
        part[..., self.offsets] = elements.to(part.dtype)


Pairs = StridedPairs | ScatteredPairs


def find_pairs(layout: KeyLayout, changed: Tensor, strides: tuple[int, ...]) -> Sequence[Pairs]:
    """Where the changed pairs lie.

    Args:
        changed: bool ``[rotary_dim // 2]``, which pairs change.
        strides: strides of a cache.

    Returns:
        Strided pairs for each run of adjacent changed pairs. If the layout has no such strides, scattered pairs for
        all changed pairs.
    """
    offsets = _element_offsets(layout, strides)
    runs = [_strided(layout, offsets, first, last) for first, last in _runs(changed)]
    found = [run for run in runs if run is not None]
    return found if len(found) == len(runs) else [_scattered(layout, offsets, changed.nonzero().flatten())]


def _element_offsets(layout: KeyLayout, strides: tuple[int, ...]) -> Tensor:
    """The offset of each key element from the start of its head, int64 ``[block_size, head_dim]``."""
    if layout.order is not None:
        return layout.order.view(layout.block_size, layout.head_dim)
    return torch.arange(layout.block_size)[:, None] * strides[2] + torch.arange(layout.head_dim) * strides[3]


def _runs(changed: Tensor) -> list[tuple[int, int]]:
    """First and last pair of each run of adjacent changed pairs."""
    edges = torch.nn.functional.pad(changed.long(), (1, 1)).diff()
    begins, ends = ((edges == step).nonzero().flatten().tolist() for step in (1, -1))
    return [(begin, end - 1) for begin, end in zip(begins, ends, strict=True)]


def _members(layout: KeyLayout, offsets: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets of the first and of the second elements of some pairs, each ``[block_size, num_pairs]``."""
    rotary = offsets[:, layout.rotary_offset :]
    if layout.is_neox_style:
        return rotary[:, pairs], rotary[:, pairs + layout.rotary_dim // 2]
    return rotary[:, 2 * pairs], rotary[:, 2 * pairs + 1]


def _strided(layout: KeyLayout, offsets: Tensor, first_pair: int, last_pair: int) -> StridedPairs | None:
    chosen = torch.arange(first_pair, last_pair + 1)
    first, second = _members(layout, offsets, chosen)
    distance = int(second[0, 0] - first[0, 0])
    ascending, places = first.flatten().sort()
    nest = _nest(ascending)
    if nest is None or distance < 1 or not bool((second - first == distance).all()):
        return None
    tokens, pairs = places // len(chosen), chosen[places % len(chosen)]
    return StridedPairs(tokens, pairs, *nest, start=int(ascending[0]), distance=distance)


def _scattered(layout: KeyLayout, offsets: Tensor, chosen: Tensor) -> ScatteredPairs:
    first, second = (member.flatten() for member in _members(layout, offsets, chosen))
    # In the order of memory, so that elements that are read one after another lie together.
    ascending, places = first.sort()
    tokens, pairs = places // len(chosen), chosen[places % len(chosen)]
    return ScatteredPairs(tokens, pairs, torch.stack((ascending, second[places])))


def _nest(offsets: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and strides that visit ascending offsets in their order, or None if there are none."""
    shape: list[int] = []
    strides: list[int] = []
    while offsets.numel() > 1:
        steps = offsets.diff()
        breaks = (steps != steps[0]).nonzero()
        length = int(breaks[0]) + 1 if breaks.numel() else offsets.numel()
        if offsets.numel() % length:
            return None
        rows = offsets.view(-1, length)
        if not torch.equal(rows - rows[:, :1], (rows[0] - rows[0, 0]).expand_as(rows)):
            return None
        shape.insert(0, length)
        strides.insert(0, int(steps[0]))
        offsets = rows[:, 0]
    return tuple(shape) or (1,), tuple(strides) or (1,)

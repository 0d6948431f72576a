"""Vectorised torch: re-rotate the keys of whole blocks, a few at a time so that they stay in the core's cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc_runtime.kernels.key_layout import BlockMoves, KeyLayout
from posenc_runtime.kernels.scale_change import ScaleChange

_ELEMENTS_AT_ONCE = 2**17  # of keys; in float32 with its results, 1.5 MiB


def rerotate(kv_caches: Sequence[Tensor], moves: BlockMoves, change: ScaleChange, layout: KeyLayout) -> None:
    """See ``reference.rerotate``. Angles are computed once for all layers."""
    if not len(moves.sources):
        return
    transposed = _is_transposed(layout)
    positions = moves.first_positions[:, None] + torch.arange(layout.block_size, device=moves.sources.device)
    cos, sin = (table[:, None] for table in change.cos_sin(positions))  # [num_moves, 1, block_size, pairs]
    if transposed:
        cos, sin = (table.transpose(2, 3).contiguous() for table in (cos, sin))
    copied = bool((moves.sources != moves.targets).any())
    num_at_once = max(_ELEMENTS_AT_ONCE // (kv_caches[0].shape[1] * layout.block_size * layout.head_dim), 1)
    for kv_cache in kv_caches:
        for first in range(0, len(moves.sources), num_at_once):
            part = slice(first, first + num_at_once)
            sources, targets = moves.sources[part], moves.targets[part]
            if layout.order is None:
                _rerotate_rows(kv_cache, sources, targets, cos[part], sin[part], layout, copied)
            else:
                packed = kv_cache.view(*kv_cache.shape[:2], 2, -1)
                if copied:
                    packed[targets, :, 1] = packed[sources, :, 1]
                turn = _rerotate_transposed if transposed else _rerotate_ordered
                turn(packed, sources, targets, cos[part], sin[part], layout)


def _is_transposed(layout: KeyLayout) -> bool:
    """Whether keys are packed dim by dim: then the partners of a pair are two slices, and nothing is gathered."""
    if layout.order is None:
        return False
    order = layout.order.view(layout.block_size, layout.head_dim)
    return torch.equal(order.T.flatten(), torch.arange(order.numel(), device=order.device))


def _rerotate_rows(
    kv_cache: Tensor, sources: Tensor, targets: Tensor, cos: Tensor, sin: Tensor, layout: KeyLayout, copied: bool
) -> None:
    blocks = kv_cache[sources]
    first, second = _pairs(blocks[..., : layout.rotary_dim], layout, dim=-1)
    one, other = _turned(first, second, cos, sin)
    first.copy_(one)
    second.copy_(other)
    if copied:
        kv_cache[targets] = blocks
    else:
        # Values stay untouched: a reader of theirs need not wait.
        kv_cache[targets, ..., : layout.rotary_dim] = blocks[..., : layout.rotary_dim]


def _rerotate_transposed(
    packed: Tensor, sources: Tensor, targets: Tensor, cos: Tensor, sin: Tensor, layout: KeyLayout
) -> None:
    keys = packed[sources, :, 0].view(len(sources), -1, layout.head_dim, layout.block_size)
    first, second = _pairs(keys[:, :, : layout.rotary_dim], layout, dim=2)
    one, other = _turned(first, second, cos, sin)
    first.copy_(one)
    second.copy_(other)
    packed[targets, :, 0] = keys.flatten(2)


def _rerotate_ordered(
    packed: Tensor, sources: Tensor, targets: Tensor, cos: Tensor, sin: Tensor, layout: KeyLayout
) -> None:
    assert layout.order is not None
    found = packed[sources, :, 0]
    keys = found[..., layout.order].view(len(sources), -1, layout.block_size, layout.head_dim)
    first, second = _pairs(keys[..., : layout.rotary_dim], layout, dim=-1)
    one, other = _turned(first, second, cos, sin)
    first.copy_(one)
    second.copy_(other)
    found[..., layout.order] = keys.flatten(2)
    packed[targets, :, 0] = found


def _pairs(rotated: Tensor, layout: KeyLayout, dim: int) -> tuple[Tensor, Tensor]:
    """The two partners of every pair, as views."""
    if layout.is_neox_style:
        first, second = rotated.chunk(2, dim=dim)
        return first, second
    last = rotated.movedim(dim, -1)
    return last[..., 0::2].movedim(-1, dim), last[..., 1::2].movedim(-1, dim)


def _turned(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    first, second = first.float(), second.float()
    one = (first * cos).addcmul_(second, sin, value=-1)
    other = (second * cos).addcmul_(first, sin)
    return one, other

"""The torch references of ``rope_rows`` and ``rerotate``, which specify their kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc_runtime.kernels.rotary.rerotation import SCALE_BYTES, BlockMoves, KeyLayout, ScaleChange, largest


def rope_rows(positions: Tensor, slot_mapping: Tensor, block_row_offset: Tensor, block_size: int, out: Tensor) -> None:
    """Row of each token in the stacked table: its position, plus the first row of its block's scale.

    Args:
        positions: int64 ``[num_tokens]``.
        slot_mapping: int64 ``[at least 0]``; -1 for a token that is not written. Tokens past its end are padding.
        block_row_offset: int64 ``[num_blocks]``, first row of the scale that each physical block carries.
        block_size: tokens per block.
        out: int64 ``[num_tokens]``. A token without a slot gets the row of block 0, which is always unscaled, because
            no request is given block 0.
    """
    num_tokens = positions.shape[0]
    block_ids = slot_mapping[:num_tokens].div(block_size, rounding_mode="floor").clamp_(min=0)
    out.copy_(positions)
    out[: block_ids.shape[0]] += block_row_offset[block_ids]


def rerotate(kv_caches: Sequence[Tensor], moves: BlockMoves, change: ScaleChange, layout: KeyLayout) -> None:
    """Write into each target block what its source would hold if its keys had been written at another scale.

    Key k of a block stands at position ``first_position + k``, or at a position on each axis. The rotated part of the
    key is turned by ``position * phases`` and multiplied by ``attention_ratio``; each pair takes the position on its
    axis. Values, the other parts of a key and pairs that do not change equal the source's to the bit. Blocks that are
    no target are not touched.

    float8 keys are turned as they are cached, in units of their scale, which is the same before and after: of a layer,
    or of a head. Their largest number takes the place of what exceeds it, and NaN stays NaN.

    Args:
        kv_caches: one for each layer, ``[num_blocks, num_kv_heads, block_size, row_dim]``, changed in place.
        moves: source and target blocks; the same in all layers.
        change: the angles and the attention ratio.
        layout: where in a block keys lie.

    Raises:
        ValueError: when a cache is not stored as ``layout`` says, or positions are not on its axes.
    """
    token = torch.arange(layout.block_size, device=moves.sources.device)[:, None]
    pair = torch.arange(layout.rotary_dim // 2, device=moves.sources.device)
    turns = layout.positions(moves, token, pair)[:, None] * change.phases  # 2^-64 turns, modulo one
    angle = turns.double() * (2 * math.pi / 2**64)  # rad, [num_moves, 1, block_size, rotary_dim // 2]
    cos, sin = change.attention_ratio * angle.cos(), change.attention_ratio * angle.sin()
    for cache in kv_caches:
        blocks = _bits(cache)[moves.sources].view(cache.dtype)
        keys = _keys(blocks, layout)
        before, rotary, after = keys.tensor_split(
            (layout.rotary_offset, layout.rotary_offset + layout.rotary_dim), dim=-1
        )
        first, second = rotary.chunk(2, dim=-1) if layout.is_neox_style else (rotary[..., ::2], rotary[..., 1::2])
        x, y = first.double(), second.double()
        turned = x * cos - y * sin, y * cos + x * sin
        if (limit := largest(cache.dtype)) is not None:
            turned = turned[0].clamp(-limit, limit), turned[1].clamp(-limit, limit)
        changed = [
            torch.where(change.is_changed(), _bits(new.to(cache.dtype)), _bits(old))
            for new, old in zip(turned, (first, second), strict=True)
        ]
        rotated = torch.cat(changed, -1) if layout.is_neox_style else torch.stack(changed, -1).flatten(-2)
        _set_keys(_bits(blocks), layout, torch.cat((_bits(before), rotated, _bits(after)), dim=-1))
        _bits(cache)[moves.targets] = _bits(blocks)


def rerotate_own_scales(kv_caches: Sequence[Tensor], moves: BlockMoves, change: ScaleChange, layout: KeyLayout) -> None:
    """``rerotate`` for keys of which each has a scale of its own: a number times the key's scale is what it stands for.

    A scale stays, unless an element of the turned key exceeds the largest number: ``q_max`` is 127 for int8 and 448 for
    float8 e4m3, by which vLLM divides the largest element of a key. Then int8 gets the scale that fits the largest
    element, and float8 twice its scale, so that halved numbers are exact but for the smallest ones. Both round as vLLM
    does when it writes a key: int8 to the nearest, half away from zero, and float8 to even. The scale takes the
    attention ratio, so the ratio rounds nothing. What does not turn in a key whose scale does not grow, and values,
    equal the source's to the bit.

    Args, raises: as ``rerotate``.
    """
    token = torch.arange(layout.block_size, device=moves.sources.device)[:, None]
    pair = torch.arange(layout.rotary_dim // 2, device=moves.sources.device)
    angle = (layout.positions(moves, token, pair)[:, None] * change.phases).double() * (2 * math.pi / 2**64)
    cos, sin = angle.cos(), angle.sin()
    first = layout.rotary_offset + (pair if layout.is_neox_style else 2 * pair)
    second = first + (layout.rotary_dim // 2 if layout.is_neox_style else 1)
    for cache in kv_caches:
        is_int8, q_max = cache.dtype == torch.int8, largest(cache.dtype)
        assert q_max is not None
        blocks = _bits(cache)[moves.sources]
        old = blocks[..., : layout.head_dim].view(cache.dtype)
        keys = old.double()
        x, y = keys[..., first], keys[..., second]
        keys[..., first] = torch.where(change.phases != 0, x * cos - y * sin, x)
        keys[..., second] = torch.where(change.phases != 0, y * cos + x * sin, y)
        biggest = keys.abs().amax(-1, keepdim=True)
        growth = torch.where(biggest > q_max, biggest / q_max if is_int8 else 2.0, 1.0)
        keys = (keys / growth).clamp(-q_max, q_max)
        new = ((keys.abs() + 0.5).floor().copysign(keys) if is_int8 else keys.float()).to(cache.dtype)
        turns = torch.zeros(layout.head_dim, dtype=torch.bool, device=cache.device)
        turns[torch.cat((first, second))] = (change.phases != 0).repeat(2)
        stored = torch.where(turns | (growth > 1), _bits(new), _bits(old))
        scale_end = layout.head_dim + SCALE_BYTES
        scale = blocks[..., layout.head_dim : scale_end].contiguous().view(torch.float32)
        grown = (scale * (growth * change.attention_ratio)).float()
        blocks[..., : layout.head_dim] = stored
        blocks[..., layout.head_dim : scale_end] = grown.view(blocks.dtype)
        _bits(cache)[moves.targets] = blocks


def _bits(keys: Tensor) -> Tensor:
    """The bits of numbers, as integers: torch chooses and scatters no float8."""
    return keys.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[keys.element_size()])


def _keys(blocks: Tensor, layout: KeyLayout) -> Tensor:
    """The keys of some blocks, ``[num_moves, num_kv_heads, block_size, head_dim]``."""
    if layout.order is None:
        return blocks[..., : layout.head_dim]
    return blocks.flatten(2)[..., layout.order.view(layout.block_size, layout.head_dim)]


def _set_keys(blocks: Tensor, layout: KeyLayout, keys: Tensor) -> None:
    if layout.order is None:
        blocks[..., : layout.head_dim] = keys
    else:
        blocks.flatten(2)[..., layout.order] = keys.flatten(2)

"""The torch twin of every kernel, with the same signature. The reference is the specification."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc_runtime.kernels.key_layout import BlockMoves, KeyLayout
from posenc_runtime.kernels.scale_change import ScaleChange


def rope_rows(positions: Tensor, slot_mapping: Tensor, block_row_offset: Tensor, block_size: int) -> Tensor:
    """Row of each token in the stacked table: its position, plus the first row of its block's scale.

    Args:
        positions: int64 ``[num_tokens]``.
        slot_mapping: int64 ``[at least 0]``; -1 for a token that is not written. Tokens past its end are padding.
        block_row_offset: int64 ``[num_blocks]``, first row of the scale that each physical block carries.
        block_size: tokens per block.

    Returns:
        int64 ``[num_tokens]``. Tokens without a slot take block 0, which is never written and so is unscaled.
    """
    num_tokens = positions.shape[0]
    block_ids = slot_mapping[:num_tokens].div(block_size, rounding_mode="floor").clamp_(min=0)
    rows = positions.clone()
    rows[: block_ids.shape[0]] += block_row_offset[block_ids]
    return rows


def rerotate(kv_caches: Sequence[Tensor], moves: BlockMoves, change: ScaleChange, layout: KeyLayout) -> None:
    """Turn the keys of whole blocks from one scale to another, in place or while the block is copied.

    A key that was rotated by ``position * a`` is turned by ``position * (b - a)``, and so is rotated by
    ``position * b``: what YaRN's section 3.3 gets by caching keys un-rotated (Peng et al. 2023, arXiv:2309.00071).
    Values, the dims past ``rotary_dim`` and all other blocks stay bit for bit.

    Args:
        kv_caches: one per layer, ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``; written in place.
        moves: which blocks, to where.
        change: from the scale that the keys carry to the one that they are to carry.
        layout: where the keys lie.
    """
    cos, sin = change.cos_sin(moves.first_positions[:, None] + torch.arange(layout.block_size))
    for kv_cache in kv_caches:
        for move, (source, target) in enumerate(zip(moves.sources.tolist(), moves.targets.tolist(), strict=True)):
            kv_cache[target] = kv_cache[source].clone()
            for head in range(kv_cache.shape[1]):
                for token in range(layout.block_size):
                    for pair in range(layout.rotary_dim // 2):
                        half = layout.rotary_dim // 2
                        dims = (pair, pair + half) if layout.is_neox_style else (2 * pair, 2 * pair + 1)
                        one, other = (_key(kv_cache, layout, target, head, token, dim) for dim in dims)
                        x, y = one.item(), other.item()
                        c, s = cos[move, token, pair].item(), sin[move, token, pair].item()
                        one.fill_(x * c - y * s)
                        other.fill_(y * c + x * s)


def _key(kv_cache: Tensor, layout: KeyLayout, block: int, head: int, token: int, dim: int) -> Tensor:
    """One element of a key, as a view."""
    if layout.order is None:
        return kv_cache[block, head, token, dim]
    return kv_cache[block, head].view(2, -1)[0, layout.order[token * layout.head_dim + dim]]

"""Where the keys of a paged cache lie, and which blocks of it are to be re-rotated."""

from __future__ import annotations

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class KeyLayout:
    """How a layer's cache stores keys. Its logical shape is ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``.

    Attributes:
        block_size: tokens per block.
        rotary_dim: width of the rotated part of a head; it comes first.
        is_neox_style: pair i is dims i and i + rotary_dim / 2; otherwise (GPT-J) dims 2 i and 2 i + 1.
        order: None where keys are ``cache[..., :head_dim]`` and values the rest, with any strides (CUDA backends).
            Otherwise int64 ``[block_size * head_dim]``: the contiguous cache is viewed as
            ``[num_blocks, num_kv_heads, 2, block_size * head_dim]``, keys first, and element (token, dim) of the keys
            lies at ``order[token * head_dim + dim]`` (CPU backends, which pack keys for their instruction set).
    """

    block_size: int
    head_dim: int
    rotary_dim: int
    is_neox_style: bool
    order: Tensor | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BlockMoves:
    """Blocks whose keys are re-rotated, int64 ``[num_moves]`` each, on the device of the cache.

    Where source and target are equal the move is in place. Otherwise the whole block is copied, its keys re-rotated;
    no source is the target of another move.

    Attributes:
        first_positions: position of each block's first token.
    """

    sources: Tensor
    targets: Tensor
    first_positions: Tensor

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

# Keys in float8 are turned as they are cached, in units of their scale: a scale that stays cancels.
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, *FLOAT8)
# Keys of which each has a scale of its own: a turned key may need a larger one.
OWN_SCALE_DTYPES = (torch.int8, torch.float8_e4m3fn)
SCALE_BYTES = 4  # of a float32


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
        axis_of_pair: for M-RoPE, int64 ``[rotary_dim // 2]``: the axis whose position turns a pair. It is on the device
            of the caches, because a copy to the device waits for it. None if a token has one position.
        has_own_scales: whether the key of each token and head has a float32 scale of its own. The cache is int8 or
            float8 then, so that an element is a byte, and the scale stands in the four bytes after the key.

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
    axis_of_pair: Tensor | None = None
    has_own_scales: bool = False

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
        if self.axis_of_pair is not None:
            self._check_axes(self.axis_of_pair)
        if self.has_own_scales:
            self._check_own_scales()

    def _check_own_scales(self) -> None:
        if self.order is not None or self.axis_of_pair is not None:
            raise ValueError("keys with scales of their own must have no order and no axes: no kernel turns them")
        if self.head_dim % SCALE_BYTES or self.row_dim % SCALE_BYTES or self.row_dim < self.head_dim + SCALE_BYTES:
            raise ValueError(
                f"head_dim and row_dim must be multiples of {SCALE_BYTES}, and row_dim must have room for a scale "
                f"after the key, got {self.head_dim} and {self.row_dim}"
            )

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

    def _check_axes(self, axis_of_pair: Tensor) -> None:
        num_pairs = self.rotary_dim // 2
        if axis_of_pair.dtype != torch.int64 or axis_of_pair.shape != (num_pairs,):
            raise ValueError(
                f"axis_of_pair must be int64 [{num_pairs}] (rotary_dim // 2), "
                f"got {axis_of_pair.dtype} {list(axis_of_pair.shape)}"
            )
        if axis_of_pair.min() < 0:
            raise ValueError(f"axis_of_pair must hold numbers of axes, at least 0, got {axis_of_pair.tolist()}")

    @functools.cached_property
    def num_axes(self) -> int:
        """Number of axes that turn pairs. Waits for the device once, if ``axis_of_pair`` is on one."""
        return 1 if self.axis_of_pair is None else int(self.axis_of_pair.max()) + 1

    def check_moves(self, moves: BlockMoves) -> None:
        """Refuse positions that are not those of this layout's blocks and axes.

        Raises:
            ValueError: when moves have positions on axes, and the layout has no axes, or more of them, or other blocks.
        """
        if moves.positions is None:
            return
        if self.axis_of_pair is None:
            raise ValueError(
                "positions on axes need a layout with axis_of_pair, got None: give first_positions instead"
            )
        _, num_axes, block_size = moves.positions.shape
        if num_axes < self.num_axes or block_size != self.block_size:
            raise ValueError(
                f"positions must be [{len(moves)}, {self.num_axes} or more axes, {self.block_size}] for this layout, "
                f"got {list(moves.positions.shape)}"
            )

    def positions(self, moves: BlockMoves, tokens: Tensor, pairs: Tensor) -> Tensor:
        """The position by which pairs of tokens are turned.

        Args:
            tokens: int64, numbers of tokens in their block.
            pairs: int64, numbers of pairs, one for each token after broadcasting.

        Returns:
            int64, of ``[num_moves]`` and the shape of ``tokens``; with positions on axes, of ``tokens`` and ``pairs``
            broadcast together.
        """
        if moves.first_positions is not None:
            return moves.first_positions.view(-1, *(1 for _ in tokens.shape)) + tokens
        assert moves.positions is not None and self.axis_of_pair is not None, "checked by check_moves"
        return moves.positions[:, self.axis_of_pair[pairs], tokens]

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
            dtypes = OWN_SCALE_DTYPES if self.has_own_scales else DTYPES
            if cache.dtype not in dtypes:
                names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
                raise ValueError(
                    f"a cache must be {', '.join(names[:-1])} or {names[-1]}, got {cache.dtype} at layer {layer}: keys "
                    "in another type cannot be re-rotated"
                )
            if self.has_own_scales and (cache.stride(3) != 1 or any(step % SCALE_BYTES for step in cache.stride()[:3])):
                raise ValueError(
                    f"rows with scales must be contiguous and begin at multiples of {SCALE_BYTES} bytes, got strides "
                    f"{cache.stride()} at layer {layer}"
                )
            if self.order is not None and not cache.is_contiguous():
                raise ValueError(
                    f"a cache with an order must be contiguous, got strides {cache.stride()} at layer {layer}"
                )


@dataclasses.dataclass(frozen=True)
class BlockMoves:
    """Which blocks are re-rotated, on the device of the caches.

    A block that is source and target of the same move is rotated in place. Otherwise a source may have several targets,
    but no block may be the source of one move and the target of another, or the target of two, because moves are made
    in no particular order.

    Attributes:
        sources: physical block that is read, int64 ``[num_moves]``.
        targets: physical block that is written, int64 ``[num_moves]``.
        first_positions: position of the block's first token, which the positions of its other tokens follow one by one,
            int64 ``[num_moves]``.
        positions: instead of ``first_positions``, position of each token on each axis, int64
            ``[num_moves, num_axes, block_size]``; see ``KeyLayout.axis_of_pair``.

    Raises:
        ValueError: when the tensors have different lengths, or another data type, or when not exactly one of
            ``first_positions`` and ``positions`` is given.
    """

    sources: Tensor
    targets: Tensor
    first_positions: Tensor | None = None
    positions: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.first_positions is None) == (self.positions is None):
            raise ValueError("BlockMoves must have either first_positions or positions, got both or neither")
        for name, dims in (("sources", 1), ("targets", 1), ("first_positions", 1), ("positions", 3)):
            values = getattr(self, name)
            if values is None:
                continue
            if values.dtype != torch.int64 or values.dim() != dims or len(values) != len(self):
                shape = ", ".join((str(len(self)), "num_axes", "block_size")[:dims])
                raise ValueError(
                    f"{name} must be int64 [{shape}], one for each source, got {values.dtype} {list(values.shape)}"
                )

    def chosen(self, which: Tensor | slice) -> BlockMoves:
        """Some of the moves, or all in another order."""
        first_positions, positions = (
            None if column is None else column[which] for column in (self.first_positions, self.positions)
        )
        return BlockMoves(self.sources[which], self.targets[which], first_positions, positions)

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


def largest(dtype: torch.dtype) -> float | None:
    """The largest number of float8, past which a cast may give NaN or infinity, and of int8; None for other types.

    An element of a turned key can be up to 2 ** 0.5 times as large as the largest one was, so it is clamped to this.
    vLLM divides the largest element of a key by it, where each key has a scale of its own.
    """
    if dtype == torch.int8:
        return 127.0
    return torch.finfo(dtype).max if dtype in FLOAT8 else None


def stored_alike(kv_caches: Iterable[Tensor]) -> list[list[Tensor]]:
    """The caches in groups with the same data type, number of heads and strides: one launch can do a whole group."""
    groups: dict[tuple[object, ...], list[Tensor]] = {}
    for cache in kv_caches:
        groups.setdefault((cache.dtype, cache.shape[1], cache.stride()), []).append(cache)
    return list(groups.values())

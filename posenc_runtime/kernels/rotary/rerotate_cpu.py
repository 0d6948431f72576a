"""Re-rotation in torch for the CPU: a few blocks of a layer at a time, so that they stay in the processor's cache."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc_runtime.kernels.rotary.key_pairs import Pairs, find_pairs
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange, largest, stored_alike

# Elements of one layer that a thread takes at once: 1 MiB in float32. With more, keys leave the processor's cache
# between two operations. With fewer, calling the operations takes the time; torch gives no thread fewer than 2^15.
_ELEMENTS_PER_THREAD = 2**18


def rerotate(kv_caches: Sequence[Tensor], moves: BlockMoves, change: ScaleChange, layout: KeyLayout) -> None:
    """See ``reference.rerotate``. All tensors are on the CPU.

    All layers with the same storage share cosines and sines. These are computed from angles that are exact in float64
    and then rounded to float32, so they are wrong by at most 2e-7.
    """
    moves = moves.chosen(moves.sources.argsort())  # so that adjacent blocks are read in one operation
    for caches in stored_alike(kv_caches):
        _rerotate_alike(caches, moves, change, layout)


def _rerotate_alike(caches: Sequence[Tensor], moves: BlockMoves, change: ScaleChange, layout: KeyLayout) -> None:
    num_kv_heads = caches[0].shape[1]
    found = find_pairs(layout, change.is_changed(), caches[0].stride())
    parts = [[pairs.within(cache) for pairs in found] for cache in caches]
    at_once = max(
        1, _ELEMENTS_PER_THREAD * torch.get_num_threads() // (num_kv_heads * layout.block_size * layout.head_dim)
    )
    room = [torch.empty(2, at_once, num_kv_heads, 2, *pairs.shape) for pairs in found]
    for begin in range(0, len(moves), at_once):
        chunk = moves.chosen(slice(begin, begin + at_once))
        runs = _runs(chunk.sources.tolist(), chunk.targets.tolist())
        rotations = [
            _Rotation(pairs, runs, _cos_sin(layout.positions(chunk, pairs.tokens, pairs.pairs), pairs, change), buffers)
            for pairs, buffers in zip(found, room, strict=True)
        ]
        for cache, of_cache in zip(caches, parts, strict=True):
            for run in runs:
                if run.source != run.target:
                    cache.narrow(0, run.target, run.length).copy_(cache.narrow(0, run.source, run.length))
            for rotation, part in zip(rotations, of_cache, strict=True):
                rotation.apply(part)


@dataclasses.dataclass(frozen=True)
class _Run:
    """Moves whose sources are adjacent blocks in ascending order, and whose targets are, too."""

    source: int
    target: int
    length: int


def _runs(sources: list[int], targets: list[int]) -> list[_Run]:
    ends = [
        index
        for index in range(1, len(sources))
        if (sources[index], targets[index]) != (sources[index - 1] + 1, targets[index - 1] + 1)
    ]
    begins = [0, *ends]
    return [
        _Run(sources[begin], targets[begin], end - begin)
        for begin, end in zip(begins, [*ends, len(sources)], strict=True)
    ]


def _cos_sin(positions: Tensor, pairs: Pairs, change: ScaleChange) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each pair's angle, times the attention ratio; float32 ``[num_blocks, 1, *shape]`` each.

    Args:
        positions: int64 ``[num_blocks, num]``, of what lies at each place.
    """
    turns = positions * change.phases[pairs.pairs]  # 2^-64 turns, modulo one
    angle = (turns.double() * (2 * math.pi / 2**64)).float().view(-1, 1, *pairs.shape)  # rad
    return angle.cos().mul_(change.attention_ratio), angle.sin().mul_(change.attention_ratio)


class _Rotation:
    """The rotation of a few blocks, which is the same in each layer. The constructor makes every view once."""

    def __init__(self, pairs: Pairs, runs: list[_Run], cos_sin: tuple[Tensor, Tensor], buffers: Tensor) -> None:
        cos, self._sin = cos_sin
        self._cos = cos[:, :, None]
        self._pairs = pairs
        self._keys, self._rotated = buffers[:, : len(cos)]
        self._halves = (self._keys[:, :, 0], self._keys[:, :, 1], self._rotated[:, :, 0], self._rotated[:, :, 1])
        lengths = [run.length for run in runs]
        self._runs = list(zip(runs, self._keys.split(lengths), self._rotated.split(lengths), strict=True))

    def apply(self, part: Tensor) -> None:
        """Rotate the blocks in ``part``, which is ``pairs.within`` of one layer's cache."""
        for run, keys, _ in self._runs:
            self._pairs.read(part.narrow(0, run.source, run.length), keys)
        first, second, rotated_first, rotated_second = self._halves
        torch.mul(self._keys, self._cos, out=self._rotated)
        rotated_first.addcmul_(second, self._sin, value=-1)
        rotated_second.addcmul_(first, self._sin)
        if (limit := largest(part.dtype)) is not None:
            self._rotated.clamp_(-limit, limit)
        for run, _, rotated in self._runs:
            self._pairs.write(part.narrow(0, run.target, run.length), rotated)

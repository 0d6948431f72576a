"""Blocks that a crossing looks at and moves, as columns: a long request has thousands of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class HeldBlocks:
    """The blocks with cached keys of a request that crosses, ``[num_blocks]`` each.

    Attributes:
        group: number of the KV cache group whose layers the block belongs to.
        block_id: number of the physical block.
        first_position: position of the block's first token.
        num_tokens: tokens of the request in the block, at least 1.
        shared: another request reads the block, too, so it must not be written.
        cached: the prefix cache could hand the block out again, at the scale that it carries now.
    """

    group: Column
    block_id: Column
    first_position: Column
    num_tokens: Column
    shared: Mask
    cached: Mask

    def __len__(self) -> int:
        return len(self.block_id)


class BlockMove(NamedTuple):
    """The keys of ``source``, re-rotated, are to be in ``target``. Equal: in place. Otherwise values are copied."""

    group: int
    source: int
    target: int
    first_position: int
    num_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Moves:
    """Moves in the order in which they are made, ``[num_moves]`` each; the fields are those of ``BlockMove``."""

    group: Column
    source: Column
    target: Column
    first_position: Column
    num_tokens: Column

    @classmethod
    def of(cls, moves: Iterable[BlockMove]) -> Self:
        rows = np.array(list(moves), dtype=np.int64).reshape(-1, len(BlockMove._fields))
        return cls(**dict(zip(BlockMove._fields, rows.T.copy(), strict=True)))

    @classmethod
    def joined(cls, parts: Sequence[Moves]) -> Self:
        """All moves of several, in their order."""
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in BlockMove._fields})

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[BlockMove]:
        columns = (getattr(self, name).tolist() for name in BlockMove._fields)
        return map(BlockMove._make, zip(*columns, strict=True))

    def part(self, begin: int, end: int) -> Moves:
        """The moves of these numbers."""
        return type(self)(**{name: getattr(self, name)[begin:end] for name in BlockMove._fields})

    @property
    def copies(self) -> Mask:
        """Which of them lead into another block."""
        differs: Mask = self.source != self.target
        return differs

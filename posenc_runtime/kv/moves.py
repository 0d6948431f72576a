"""The blocks of a crossing and their moves, stored as columns, because a long request has thousands of blocks."""

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
        shared: whether another request reads the block, so that it must not be written.
        cached: whether the prefix cache could hand the block out again, at the block's present scale.
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
    """Re-rotate the keys of block ``source`` into block ``target``, and copy the values if the two blocks differ."""

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
        """The moves of all ``parts``, in their order."""
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in BlockMove._fields})

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[BlockMove]:
        columns = (getattr(self, name).tolist() for name in BlockMove._fields)
        return map(BlockMove._make, zip(*columns, strict=True))

    def part(self, begin: int, end: int) -> Moves:
        """The moves with the numbers ``begin`` to ``end - 1``."""
        return type(self)(**{name: getattr(self, name)[begin:end] for name in BlockMove._fields})

    @property
    def copies(self) -> Mask:
        """Which moves have a target other than their source, ``[num_moves]``."""
        differs: Mask = self.source != self.target
        return differs

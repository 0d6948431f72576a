"""The KV cache groups of a model: how far their layers read back, and whether the keys of these are scaled."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Group:
    """A KV cache group.

    Attributes:
        window: tokens that a query reads at most, its own among them; at least 2.
        chunk: tokens of a chunk; a query reads those of its own chunk.
        scaled: whether the keys are rotated by the request's scale.
        keeps_state: whether there is a state in the place of keys.
    """

    window: int | None = None
    chunk: int | None = None
    scaled: bool = True
    keeps_state: bool = False

    def first_read(self, position: int) -> int:
        """The first position that the query at a position reads."""
        if self.window is not None:
            return max(position - self.window + 1, 0)
        return position // self.chunk * self.chunk if self.chunk is not None else 0

    def num_gone(self, num_computed: int, block_size: int) -> int:
        """Blocks from the first one on that no query reads any more."""
        return self.first_read(num_computed) // block_size


Groups = tuple[Group, ...]

ONE: Groups = (Group(),)
STATES: Groups = (Group(), Group(scaled=False, keeps_state=True))
MODELS: dict[str, Groups] = {
    "one": ONE,
    "windowed": (Group(window=3),),
    "every other windowed": (Group(window=4), Group()),
    "local ropes": (Group(window=5, scaled=False), Group()),
    "chunks among layers without rope": (Group(chunk=4), Group(scaled=False)),
    "two windows": (Group(window=2), Group(scaled=False), Group(window=6), Group()),
}

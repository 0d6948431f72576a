"""Re-rotations for the kernel, by hand, and what they must leave in memory: complex numbers in float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange
from tests.tolerance import KEY_STORED_AT_ZERO, KEY_STORED_BY_INTERPRETER, KEY_TURNED_BY_KERNEL

NUM_BLOCKS = 8
SOURCES, TARGETS = (3, 1, 6, 1), (3, 5, 6, 0)  # in place, copied, in place, copied once more
LAST_POSITION = 1_048_575
# Of the keys in memory: of float8 some pairs are so long that an element exceeds the largest number when they turn.
SIZES = {torch.float8_e4m3fn: 200.0, torch.float8_e5m2: 25_000.0}
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57_344.0}


def scale_and_next(rotary_dim: int, unchanged: Sequence[int], ratio: float) -> tuple[Frequencies, Frequencies]:
    """Of two scales, the second of which turns all pairs but some four times as slowly."""
    pair = torch.arange(rotary_dim // 2)
    before = (10_000.0 ** (-2 * pair.double() / rotary_dim)).float()
    after = torch.where(torch.isin(pair, torch.tensor(unchanged)), before, before / 4)
    return Frequencies(before, 1.25), Frequencies(after, 1.25 * ratio)


@dataclasses.dataclass(frozen=True)
class Case:
    """Layers of a paged cache, how their keys lie, and what changes.

    Attributes:
        num_heads: of each layer.
        storage: "heads-first" is contiguous, "tokens-first" the transposed view that vLLM's CUDA backends hold,
            "spaced" has as much room after each block, and "unaligned" begins one element late.
        unchanged: pairs whose frequency stays.
        ratio: by which the attention factor grows.
        rotary_offset: dim of a key where its rotated part begins.
        value_dim: None for values as wide as keys.
        axes: of pairs: none, or three in "sections" or "interleaved".
    """

    num_heads: tuple[int, ...] = (2,)
    block_size: int = 4
    head_dim: int = 32
    rotary_dim: int = 32
    is_neox_style: bool = True
    dtype: torch.dtype = torch.float32
    storage: str = "heads-first"
    unchanged: tuple[int, ...] = ()
    ratio: float = 1.0
    rotary_offset: int = 0
    value_dim: int | None = None
    axes: str = ""

    def layout(self) -> KeyLayout:
        return KeyLayout(
            block_size=self.block_size,
            head_dim=self.head_dim,
            rotary_dim=self.rotary_dim,
            is_neox_style=self.is_neox_style,
            rotary_offset=self.rotary_offset,
            row_dim=self.row_dim,
            axis_of_pair=self.axis_of_pair() if self.axes else None,
        )

    @property
    def row_dim(self) -> int:
        return self.head_dim + (self.head_dim if self.value_dim is None else self.value_dim)

    def axis_of_pair(self) -> Tensor:
        """Qwen2.5-VL's sections are one after another; Qwen3-VL interleaves them, as far as the shorter ones go."""
        pair, num_pairs = torch.arange(self.rotary_dim // 2), self.rotary_dim // 2
        if self.axes == "sections":
            return torch.bucketize(pair, torch.tensor([num_pairs // 4, 5 * num_pairs // 8]), right=True)
        return torch.where(pair < 3 * (num_pairs // 4), pair % 3, 0)

    def first_positions(self) -> tuple[int, ...]:
        return (0, 700, LAST_POSITION - self.block_size + 1, 131_001)

    def positions(self) -> Tensor:
        """By which each token's pairs are turned, int64 ``[num_moves, block_size, rotary_dim // 2]``."""
        if self.axes:
            return self._positions_on_axes()[:, self.axis_of_pair()].transpose(1, 2)
        first = torch.tensor(self.first_positions())[:, None, None]
        return (first + torch.arange(self.block_size)[:, None]).expand(-1, -1, self.rotary_dim // 2)

    def _positions_on_axes(self) -> Tensor:
        """int64 ``[num_moves, 3, block_size]``, which follow no order."""
        drawn = torch.Generator().manual_seed(3)
        return torch.randint(0, LAST_POSITION + 1, (len(SOURCES), 3, self.block_size), generator=drawn)

    def moves(self) -> BlockMoves:
        sources, targets = torch.tensor(SOURCES), torch.tensor(TARGETS)
        if self.axes:
            return BlockMoves(sources, targets, positions=self._positions_on_axes())
        return BlockMoves(sources, targets, torch.tensor(self.first_positions()))

    def frequencies(self) -> tuple[Frequencies, Frequencies]:
        return scale_and_next(self.rotary_dim, self.unchanged, self.ratio)

    def change(self) -> ScaleChange:
        return ScaleChange.between(*self.frequencies())

    def memory(self) -> list[Tensor]:
        """What lies under each layer, random."""
        generator = torch.Generator().manual_seed(7)
        sizes = [NUM_BLOCKS * heads * self.block_size * self.row_dim for heads in self.num_heads]
        factor, begin = 2 if self.storage == "spaced" else 1, self.storage == "unaligned"
        largest, size_of_keys = LARGEST.get(self.dtype, math.inf), SIZES.get(self.dtype, 1.0)
        drawn = [size_of_keys * torch.randn(factor * size + begin, generator=generator) for size in sizes]
        for of_layer in drawn:
            of_layer[::7] = -0.0  # which a turn by nothing would make positive; never both elements of a pair
        return [of_layer.clamp(-largest, largest).to(self.dtype) for of_layer in drawn]

    def caches(self, memory: list[Tensor]) -> list[Tensor]:
        """The layers in it, ``[num_blocks, num_heads, block_size, row_dim]``, sharing it."""
        return [self._cache(of_layer, heads) for of_layer, heads in zip(memory, self.num_heads, strict=True)]

    def _cache(self, memory: Tensor, num_heads: int) -> Tensor:
        tokens, width = self.block_size, self.row_dim
        if self.storage == "tokens-first":
            return memory.view(NUM_BLOCKS, tokens, num_heads, width).transpose(1, 2)
        if self.storage == "spaced":
            return memory.view(NUM_BLOCKS, 2, num_heads, tokens, width)[:, 0]
        return memory[self.storage == "unaligned" :].view(NUM_BLOCKS, num_heads, tokens, width)

    def faults(self, memory_before: list[Tensor], memory_after: list[Tensor]) -> list[str]:
        """What is wrong with the memory after the moves, in words."""
        found = []
        for layer, (before, after) in enumerate(
            zip(self.caches(memory_before), self.caches(memory_after), strict=True)
        ):
            for source, target, positions in zip(SOURCES, TARGETS, self.positions(), strict=True):
                where = f"layer {layer}, block {source} to {target}"
                error = self._error(before[source], after[target], positions)
                if not error <= 1:  # nor a NaN
                    found.append(f"{where}: turned keys are wrong by {error:.2f} times the tolerance")
                kept = self._kept()
                if not torch.equal(bits(before)[source][..., kept], bits(after)[target][..., kept]):
                    found.append(f"{where}: what does not turn has changed")
            bits(after)[list(TARGETS)] = bits(before)[
                list(TARGETS)
            ]  # and now nothing may differ, the room between blocks included
        if not all(map(same_bits, memory_before, memory_after)):
            found.append("memory outside the targets has changed")
        return found

    def _members(self) -> tuple[Tensor, Tensor]:
        """Dims of the first and of the second elements of all pairs."""
        pair = torch.arange(self.rotary_dim // 2)
        first = self.rotary_offset + (pair if self.is_neox_style else 2 * pair)
        return first, first + (self.rotary_dim // 2 if self.is_neox_style else 1)

    def _kept(self) -> Tensor:
        """Dims of a key and of its value that are the source's, to the bit."""
        first, second = self._members()
        unchanged = list(self.unchanged) if self.ratio == 1 else []
        rest = torch.arange(self.row_dim)
        rest = rest[(rest < self.rotary_offset) | (rest >= self.rotary_offset + self.rotary_dim)]
        return torch.cat((first[unchanged], second[unchanged], rest))

    def _error(self, before: Tensor, after: Tensor, position: Tensor) -> float:
        """The largest of a block, in parts of what is tolerated.

        Args:
            before, after: ``[num_heads, block_size, row_dim]``.
            position: ``[block_size, rotary_dim // 2]``.
        """
        first, second = self._members()
        old, new = self.frequencies()
        position = position.double()
        before, after = before.double(), after.double()
        unrotated = torch.complex(before[..., first], before[..., second]) * torch.polar(
            torch.tensor(1 / old.attention_factor, dtype=torch.float64), -position * old.inv_freq.double()
        )
        expected = unrotated * torch.polar(
            torch.tensor(new.attention_factor, dtype=torch.float64), position * new.inv_freq.double()
        )
        largest, errors = LARGEST.get(self.dtype, math.inf), []
        for found, part in ((after[..., first], expected.real), (after[..., second], expected.imag)):
            stored = part.clamp(-largest, largest)
            allowed = KEY_TURNED_BY_KERNEL * expected.abs() + self.rounding(stored)
            errors.append(((found - stored).abs() / allowed).max().item())
        return max(errors)

    def rounding(self, stored: Tensor) -> Tensor:
        """What storing these numbers may round them by."""
        name = str(self.dtype).removeprefix("torch.")
        return KEY_STORED_BY_INTERPRETER[name] * stored.abs() + KEY_STORED_AT_ZERO.get(name, 0.0)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(bits(one), bits(other))


def bits(numbers: Tensor) -> Tensor:
    """As integers, which torch also compares and copies by index where it does not do so with float8."""
    return numbers.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[numbers.element_size()])


_E4M3 = torch.float8_e4m3fn
_LATENT = Case((1, 1, 1), block_size=16, head_dim=576, rotary_dim=64, rotary_offset=512, value_dim=0)
_END_OF_HEAD = Case(head_dim=48, rotary_dim=16, rotary_offset=32)
_EIGHT_UNCHANGED = tuple(range(8))

CASES = {
    "neox": Case(),
    "gptj": Case(is_neox_style=False),
    "neox-partial": Case(head_dim=40, rotary_dim=16),
    "gptj-partial": Case(head_dim=40, rotary_dim=16, is_neox_style=False),
    "neox-head-of-48": Case(head_dim=48, rotary_dim=48),
    "gptj-head-of-24-partly": Case(head_dim=24, rotary_dim=20, is_neox_style=False),
    "neox-blocks-of-5": Case(block_size=5),
    "gptj-blocks-of-7": Case(block_size=7, is_neox_style=False),
    "blocks-of-more-than-a-tile": Case(num_heads=(1,), block_size=67, head_dim=64, rotary_dim=64),
    "partial-blocks-of-more-than-a-tile": Case(num_heads=(1,), block_size=67, head_dim=128, rotary_dim=16),
    "one-head": Case(num_heads=(1,)),
    "nine-heads": Case(num_heads=(9,)),
    "seventeen-heads-tokens-first": Case(num_heads=(17,), head_dim=16, rotary_dim=16, storage="tokens-first"),
    "four-layers": Case(num_heads=(2, 2, 2, 2)),
    "layers-of-unlike-heads": Case(num_heads=(2, 3, 2), storage="tokens-first"),
    "neox-tokens-first": Case(num_heads=(3,), block_size=5, storage="tokens-first"),
    "gptj-tokens-first": Case(num_heads=(3,), block_size=5, is_neox_style=False, storage="tokens-first"),
    "neox-spaced": Case(storage="spaced"),
    "gptj-spaced": Case(is_neox_style=False, storage="spaced"),
    "unaligned": Case(num_heads=(2, 2), dtype=torch.bfloat16, storage="unaligned"),
    "neox-bfloat16": Case(dtype=torch.bfloat16, ratio=1.07),
    "gptj-bfloat16": Case(is_neox_style=False, dtype=torch.bfloat16, ratio=1.07),
    "neox-float16": Case(dtype=torch.float16, ratio=1.07),
    "gptj-float16": Case(is_neox_style=False, dtype=torch.float16, ratio=1.07),
    "neox-ratio": Case(ratio=1.2),
    "gptj-ratio-below-one": Case(is_neox_style=False, ratio=0.8),
    "ratio-where-frequencies-stay": Case(unchanged=tuple(range(10)), ratio=1.2),
    "neox-ten-unchanged": Case(unchanged=tuple(range(10))),
    "gptj-ten-unchanged": Case(is_neox_style=False, unchanged=tuple(range(10))),
    "bfloat16-ten-unchanged": Case(dtype=torch.bfloat16, unchanged=tuple(range(10))),
    "unchanged-between-changed": Case(unchanged=(0, 5, 11)),
    "gptj-unchanged-between-changed": Case(is_neox_style=False, unchanged=(1, 6)),
    "nothing-turns": Case(unchanged=tuple(range(16))),
    "neox-latents": _LATENT,
    "gptj-latents": dataclasses.replace(_LATENT, is_neox_style=False, dtype=torch.bfloat16, ratio=1.07),
    "latents-ten-unchanged": dataclasses.replace(_LATENT, unchanged=tuple(range(10))),
    "neox-end-of-head": _END_OF_HEAD,
    "gptj-end-of-head": dataclasses.replace(_END_OF_HEAD, is_neox_style=False),
    "end-of-head-tokens-first": dataclasses.replace(_END_OF_HEAD, num_heads=(3,), storage="tokens-first"),
    "neox-end-of-head-unchanged": dataclasses.replace(_END_OF_HEAD, unchanged=_EIGHT_UNCHANGED[:7]),
    "gptj-end-of-head-eight-unchanged": Case(
        head_dim=48, rotary_dim=20, rotary_offset=24, is_neox_style=False, unchanged=_EIGHT_UNCHANGED
    ),
    "middle-of-head-at-any-dim": Case(head_dim=40, rotary_dim=12, rotary_offset=7),
    "values-narrower-than-keys": Case(head_dim=48, rotary_dim=16, value_dim=32),
    "neox-axes-in-sections": Case(axes="sections"),
    "gptj-axes-in-sections": Case(is_neox_style=False, axes="sections", dtype=torch.bfloat16, ratio=1.07),
    "neox-axes-interleaved": Case(axes="interleaved", unchanged=tuple(range(10))),
    "gptj-axes-interleaved": Case(is_neox_style=False, axes="interleaved"),
    "axes-of-a-partial-head-in-blocks-of-5": Case((3,), 5, 40, 24, axes="sections", storage="tokens-first"),
    "axes-in-blocks-of-more-than-a-tile": Case((1,), 67, 64, 64, is_neox_style=False, axes="interleaved"),
    "axes-at-the-end-of-a-head": dataclasses.replace(_END_OF_HEAD, axes="interleaved"),
    "float8": Case(dtype=_E4M3),
    "gptj-float8": Case(is_neox_style=False, dtype=_E4M3, block_size=5, storage="tokens-first"),
    "float8-ten-unchanged": Case(dtype=_E4M3, unchanged=tuple(range(10))),
    "float8-partial-factor-above-one": Case(head_dim=40, rotary_dim=16, dtype=_E4M3, ratio=1.2),
    "float8-latents": dataclasses.replace(_LATENT, is_neox_style=False, dtype=_E4M3),
    "float8-unaligned": Case(num_heads=(2, 2), dtype=_E4M3, storage="unaligned"),
    "e5m2": Case(dtype=torch.float8_e5m2),
    "gptj-e5m2": Case(is_neox_style=False, dtype=torch.float8_e5m2, unchanged=(1, 6)),
    "values-wider-than-keys": Case(head_dim=24, rotary_dim=24, is_neox_style=False, value_dim=40),
}

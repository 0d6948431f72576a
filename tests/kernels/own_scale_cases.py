"""Re-rotations of keys with scales of their own, by hand, and what they must leave in memory, in complex numbers."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange
from tests.kernels.rerotate_cases import LAST_POSITION, NUM_BLOCKS, SOURCES, TARGETS, scale_and_next
from tests.tolerance import KEY_STORED_AT_ZERO, KEY_STORED_BY_INTERPRETER, KEY_TURNED_BY_KERNEL, OWN_SCALE

Q_MAX = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@dataclasses.dataclass(frozen=True)
class Case:
    """Layers of a paged cache, how their keys lie, and what changes.

    Attributes:
        num_heads: of each layer.
        storage: "heads-first" is contiguous, "tokens-first" the transposed view that vLLM's CUDA backends hold.
        unchanged: pairs whose frequency stays.
        ratio: by which the attention factor grows.
    """

    dtype: torch.dtype = torch.int8
    num_heads: tuple[int, ...] = (2,)
    block_size: int = 4
    head_dim: int = 32
    rotary_dim: int = 32
    rotary_offset: int = 0
    value_dim: int = 32
    is_neox_style: bool = True
    storage: str = "heads-first"
    unchanged: tuple[int, ...] = ()
    ratio: float = 1.0

    def layout(self) -> KeyLayout:
        return KeyLayout(
            block_size=self.block_size,
            head_dim=self.head_dim,
            rotary_dim=self.rotary_dim,
            is_neox_style=self.is_neox_style,
            rotary_offset=self.rotary_offset,
            row_dim=self.row_dim,
            has_own_scales=True,
        )

    @property
    def row_dim(self) -> int:
        return self.head_dim + 4 + self.value_dim + 4

    def first_positions(self) -> Tensor:
        return torch.tensor([0, 700, LAST_POSITION - self.block_size + 1, 131_001])

    def moves(self) -> BlockMoves:
        return BlockMoves(torch.tensor(SOURCES), torch.tensor(TARGETS), self.first_positions())

    def frequencies(self) -> tuple[Frequencies, Frequencies]:
        return scale_and_next(self.rotary_dim, self.unchanged, self.ratio)

    def change(self) -> ScaleChange:
        return ScaleChange.between(*self.frequencies())

    def memory(self) -> list[Tensor]:
        """What lies under each layer, uint8: random keys and values, as vLLM writes them."""
        drawn = torch.Generator().manual_seed(7)
        return [
            torch.cat(
                (
                    self._written(self._shape(heads, self.head_dim), drawn),
                    self._written(self._shape(heads, self.value_dim), drawn),
                ),
                dim=-1,
            ).flatten()
            for heads in self.num_heads
        ]

    def _shape(self, num_heads: int, width: int) -> tuple[int, ...]:
        inner = (self.block_size, num_heads) if self.storage == "tokens-first" else (num_heads, self.block_size)
        return (NUM_BLOCKS, *inner, width)

    def _written(self, shape: tuple[int, ...], drawn: torch.Generator) -> Tensor:
        """Numbers and their scales as bytes, ``[..., width + 4]``."""
        numbers = torch.randn(shape, generator=drawn)
        scale = numbers.abs().amax(-1, keepdim=True) / Q_MAX[self.dtype]
        stored = numbers / scale
        stored = stored.round() if self.dtype == torch.int8 else stored
        return torch.cat((stored.to(self.dtype).view(torch.uint8), scale.view(torch.uint8)), dim=-1)

    def caches(self, memory: list[Tensor]) -> list[Tensor]:
        """The layers in it, ``[num_blocks, num_heads, block_size, row_dim]``, sharing it."""
        views = (
            of_layer.view(self._shape(heads, self.row_dim))
            for of_layer, heads in zip(memory, self.num_heads, strict=True)
        )
        return [(view.transpose(1, 2) if self.storage == "tokens-first" else view).view(self.dtype) for view in views]

    def faults(self, memory_before: list[Tensor], memory_after: list[Tensor]) -> list[str]:
        """What is wrong with the memory after the moves, in words."""
        found = []
        for layer, (before, after) in enumerate(
            zip(self.caches(memory_before), self.caches(memory_after), strict=True)
        ):
            before, after = before.view(torch.uint8), after.view(torch.uint8)
            for source, target, first in zip(SOURCES, TARGETS, self.first_positions().tolist(), strict=True):
                where = f"layer {layer}, block {source} to {target}"
                found += [f"{where}: {fault}" for fault in self._faults(before[source], after[target], first)]
            after[list(TARGETS)] = before[list(TARGETS)]  # and now nothing may differ
        if not all(map(torch.equal, memory_before, memory_after)):
            found.append("memory outside the targets has changed")
        return found

    def keys(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of keys and their scales, float64.

        Args:
            rows: uint8 ``[..., row_dim]``.
        """
        numbers = rows[..., : self.head_dim].contiguous().view(self.dtype).double()
        scale = rows[..., self.head_dim : self.head_dim + 4].contiguous().view(torch.float32).double()
        return numbers, scale

    def turned(self, rows: Tensor, first_position: int) -> tuple[Tensor, Tensor]:
        """What keys are at the new scale, and the factor by which their own scale has to grow for them."""
        numbers, scale = self.keys(rows)
        old, new = self.frequencies()
        pair, half = torch.arange(self.rotary_dim // 2), self.rotary_dim // 2
        first = self.rotary_offset + (pair if self.is_neox_style else 2 * pair)
        second = first + (half if self.is_neox_style else 1)
        position = (first_position + torch.arange(self.block_size, dtype=torch.float64))[:, None]
        angle = position * (new.inv_freq.double() - old.inv_freq.double())
        rotated = torch.complex(numbers[..., first], numbers[..., second]) * torch.polar(torch.ones(()).double(), angle)
        numbers[..., first], numbers[..., second] = rotated.real, rotated.imag
        growth = (numbers.abs().amax(-1, keepdim=True) / Q_MAX[self.dtype]).clamp(min=1.0)
        return numbers * scale * self.ratio, growth

    def _faults(self, before: Tensor, after: Tensor, first_position: int) -> list[str]:
        found = []
        numbers, scale = self.keys(before)
        expected, growth = self.turned(before, first_position)
        stored, new_scale = self.keys(after)
        is_float8 = self.dtype != torch.int8
        near_one = (growth - 1).abs() < OWN_SCALE  # either scale is right
        grown = torch.where(growth > 1, torch.full_like(growth, 2.0), growth) if is_float8 else growth
        right = (new_scale / (scale * self.ratio * grown) - 1).abs() < OWN_SCALE
        right |= near_one & ((new_scale / (scale * self.ratio) - 1).abs() < OWN_SCALE)
        if not right.all():
            found.append("the scale of a key is wrong")
        name = str(self.dtype).removeprefix("torch.")
        rounded = KEY_STORED_BY_INTERPRETER[name] * stored.abs() + KEY_STORED_AT_ZERO[name]
        allowed = new_scale * (rounded + KEY_TURNED_BY_KERNEL * Q_MAX[self.dtype] * 2)
        if not ((stored * new_scale - expected).abs() <= allowed).all():
            found.append("a turned key is wrong")
        kept = torch.ones(self.head_dim, dtype=torch.bool)
        old, new = self.frequencies()
        pair = (old.inv_freq != new.inv_freq).nonzero().flatten()
        first = self.rotary_offset + (pair if self.is_neox_style else 2 * pair)
        kept[first] = kept[first + (self.rotary_dim // 2 if self.is_neox_style else 1)] = False
        stays = (growth < 1 + OWN_SCALE) & (new_scale < 1.0001 * scale * self.ratio)
        if not torch.equal(numbers * (kept & stays), stored * (kept & stays)):
            found.append("what does not turn has changed")
        if not torch.equal(before[..., self.head_dim + 4 :], after[..., self.head_dim + 4 :]):
            found.append("a value or its scale has changed")
        return found


_E4M3 = torch.float8_e4m3fn
CASES = {
    "int8": Case(),
    "float8": Case(_E4M3),
    "int8-gptj": Case(is_neox_style=False, ratio=1.07),
    "float8-gptj": Case(_E4M3, is_neox_style=False, ratio=0.8),
    "int8-partial": Case(head_dim=40, rotary_dim=16, unchanged=(0, 3), ratio=1.2),
    "float8-end-of-head": Case(_E4M3, head_dim=48, rotary_dim=16, rotary_offset=32, unchanged=(1,)),
    "int8-middle-of-head": Case(head_dim=40, rotary_dim=12, rotary_offset=8, value_dim=24),
    "int8-ten-unchanged": Case(unchanged=tuple(range(10))),
    "float8-ten-unchanged-tokens-first": Case(_E4M3, (3,), unchanged=tuple(range(10)), storage="tokens-first"),
    "int8-layers-tokens-first": Case(num_heads=(2, 3, 2), storage="tokens-first"),
    "float8-seventeen-heads": Case(_E4M3, (17,), head_dim=16, rotary_dim=16, value_dim=16),
    "int8-blocks-of-more-than-a-tile": Case(num_heads=(1,), block_size=67, head_dim=64, rotary_dim=64),
    "float8-blocks-of-5": Case(_E4M3, block_size=5, head_dim=128, rotary_dim=128, value_dim=64, ratio=1.1),
    "nothing-turns": Case(unchanged=tuple(range(16)), ratio=1.2),
}

"""The reference of re-rotation and the CPU's implementation against loops over numbers, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary import reference
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange
from tests.kernels.rerotate_cases import CASES, LARGEST, SOURCES, TARGETS, Case, same_bits
from tests.tolerance import KEY_TURNED_BY_KERNEL

implementations = pytest.mark.parametrize(
    "implementation", [pytest.param(ops.rerotate, id="served"), pytest.param(reference.rerotate, id="reference")]
)


def turned(case: Case, cache: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A layer's cache after the moves, and the length of the pair that each element is in, 0 where it is to be kept."""
    old = cache.double().numpy()
    new, lengths = old.copy(), np.zeros_like(old)
    before, after = case.frequencies()
    ratio = after.attention_factor / before.attention_factor
    half = case.rotary_dim // 2
    positions_on_axes, axes = case.moves().positions, case.layout().axis_of_pair
    for move, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        new[target], lengths[target] = old[source], 0
        for head in range(old.shape[1]):
            for token in range(case.block_size):
                for pair in range(half):
                    if positions_on_axes is None or axes is None:
                        position = case.first_positions()[move] + token
                    else:
                        position = int(positions_on_axes[move, int(axes[pair]), token])
                    frequency = float(after.inv_freq[pair].float()) - float(before.inv_freq[pair].float())
                    if frequency == 0 and ratio == 1:
                        continue
                    place = case.rotary_offset + (pair if case.is_neox_style else 2 * pair)
                    other = place + (half if case.is_neox_style else 1)
                    x, y = old[source, head, token, place], old[source, head, token, other]
                    cos, sin = ratio * math.cos(position * frequency), ratio * math.sin(position * frequency)
                    new[target, head, token, place] = x * cos - y * sin
                    new[target, head, token, other] = y * cos + x * sin
                    lengths[target, head, token, [place, other]] = ratio * math.hypot(x, y)
    return new, lengths


@implementations
@pytest.mark.parametrize("name", CASES)
def test_what_a_pair_holds_is_what_loops_over_numbers_find(name: str, implementation: Callable[..., None]) -> None:
    case = CASES[name]
    before = case.memory()
    after = [of_layer.clone() for of_layer in before]
    expected = [turned(case, cache) for cache in case.caches(before)]
    implementation(case.caches(after), case.moves(), case.change(), case.layout())
    largest = LARGEST.get(case.dtype, math.inf)
    for cache, (new, lengths) in zip(case.caches(after), expected, strict=True):
        found, stored = cache.double().numpy(), new.clip(-largest, largest)
        rounded = case.rounding(torch.from_numpy(stored)).numpy() * (lengths > 0)
        assert np.all(np.abs(found - stored) <= KEY_TURNED_BY_KERNEL * lengths + rounded)
    assert case.faults(before, after) == []


@implementations
def test_equal_positions_on_all_axes_turn_keys_as_one_position_does(implementation: Callable[..., None]) -> None:
    on_axes, plain = CASES["neox-axes-interleaved"], CASES["neox-ten-unchanged"]
    first = torch.tensor(plain.first_positions())[:, None, None]
    positions = (first + torch.arange(plain.block_size)).expand(-1, 3, -1)
    moves = BlockMoves(torch.tensor(SOURCES), torch.tensor(TARGETS), positions=positions)
    [found], [expected] = plain.memory(), plain.memory()
    implementation(plain.caches([found]), moves, plain.change(), on_axes.layout())
    implementation(plain.caches([expected]), plain.moves(), plain.change(), on_axes.layout())
    assert same_bits(found, expected)


BLOCKS = torch.arange(2)
AXES = torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rotary_offset": 9}, r"rotary_offset must be in \[0, 8\] \(head_dim - rotary_dim\), got 9"),
        ({"rotary_offset": -1}, "rotary_offset must be in .*, got -1"),
        ({"row_dim": 15}, r"row_dim must be at least 16 \(head_dim\), got 15"),
        ({"axis_of_pair": AXES.int()}, r"axis_of_pair must be int64 \[4\] .*, got torch.int32 \[4\]"),
        ({"axis_of_pair": AXES[:3]}, r"axis_of_pair must be int64 \[4\] .*, got torch.int64 \[3\]"),
        ({"axis_of_pair": AXES - 1}, r"at least 0, got \[-1, 0, 1, -1\]"),
    ],
)
def test_layouts_that_no_cache_can_have_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KeyLayout(**{"block_size": 4, "head_dim": 16, "rotary_dim": 8, "is_neox_style": True} | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "either first_positions or positions, got both or neither"),
        ({"first_positions": BLOCKS, "positions": torch.zeros(2, 3, 4).long()}, "got both or neither"),
        ({"first_positions": BLOCKS[:1]}, r"first_positions must be int64 \[2\], .*, got torch.int64 \[1\]"),
        ({"positions": BLOCKS}, r"positions must be int64 \[2, num_axes, block_size\], .*, got torch.int64 \[2\]"),
        ({"positions": torch.zeros(2, 3, 4)}, "positions must be int64 .*, got torch.float32"),
    ],
)
def test_moves_without_one_kind_of_positions_for_each_block_are_refused(
    fields: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BlockMoves(BLOCKS, BLOCKS, **fields)


@pytest.mark.parametrize(
    ("axes", "shape", "message"),
    [
        (None, (2, 3, 4), "need a layout with axis_of_pair, got None: give first_positions instead"),
        (AXES, (2, 2, 4), r"positions must be \[2, 3 or more axes, 4\] for this layout, got \[2, 2, 4\]"),
        (AXES, (2, 3, 5), r"for this layout, got \[2, 3, 5\]"),
    ],
)
def test_positions_that_are_not_on_the_layouts_axes_are_refused(
    axes: Tensor | None, shape: tuple[int, ...], message: str
) -> None:
    layout = KeyLayout(4, 16, 8, True, axis_of_pair=axes)
    moves = BlockMoves(BLOCKS, BLOCKS, positions=torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(ValueError, match=message):
        ops.rerotate([torch.zeros(2, 1, 4, 32)], moves, ScaleChange(torch.ones(4, dtype=torch.int64)), layout)


def test_a_cache_of_another_width_is_refused() -> None:
    layout = KeyLayout(4, 16, 8, True, row_dim=16)
    with pytest.raises(
        ValueError, match=r"must be \[num_blocks, num_kv_heads, 4, 16\], got \[2, 1, 4, 32\] at layer 0"
    ):
        layout.check([torch.zeros(2, 1, 4, 32)])

"""Re-rotated keys against keys that were rotated directly, in float64, at the scale they are to carry."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from posenc_runtime.encodings.scaling.ntk import Ntk
from posenc_runtime.encodings.scaling.yarn import Yarn
from posenc_runtime.encodings.spec import Frequencies, RotarySpec
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary import reference
from posenc_runtime.kernels.rotary.key_pairs import find_pairs
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange
from tests.kernels.rerotate_cases import bits
from tests.tolerance import (
    KEY_ROUNDING,
    REROTATED_NTK_BFLOAT16,
    REROTATED_YARN_BFLOAT16,
    REROTATED_YARN_E4M3,
    REROTATED_YARN_E5M2,
)


@dataclasses.dataclass(frozen=True)
class Shape:
    """A paged cache, and how keys lie in it: rows (CUDA), dim by dim (CPU), or in any order."""

    num_heads: int
    block_size: int
    head_dim: int
    rotary_dim: int
    is_neox_style: bool
    packing: str
    rotary_offset: int = 0
    value_dim: int | None = None

    @property
    def row_dim(self) -> int:
        return self.head_dim + (self.head_dim if self.value_dim is None else self.value_dim)

    def layout(self) -> KeyLayout:
        size = self.block_size * self.head_dim
        order = {
            "rows": None,
            "transposed": torch.arange(size).view(self.head_dim, self.block_size).T.flatten(),
            "shuffled": torch.randperm(size, generator=torch.Generator().manual_seed(5)),
        }[self.packing]
        return KeyLayout(
            block_size=self.block_size,
            head_dim=self.head_dim,
            rotary_dim=self.rotary_dim,
            is_neox_style=self.is_neox_style,
            order=order,
            rotary_offset=self.rotary_offset,
            row_dim=self.row_dim,
        )

    def empty(self, num_blocks: int, dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        shape = (num_blocks, self.num_heads, self.block_size, self.row_dim)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def keys(self, cache: Tensor) -> Tensor:
        """A copy of the keys, ``[num_blocks, num_heads, block_size, head_dim]``."""
        order = self.layout().order
        if order is None:
            return cache[..., : self.head_dim].clone()
        return self._packed(cache)[0][..., order].view(*cache.shape[:2], self.block_size, self.head_dim)

    def write_keys(self, cache: Tensor, keys: Tensor) -> None:
        order = self.layout().order
        if order is None:
            cache[..., : self.head_dim] = keys
            return
        self._packed(cache)[0][..., order] = keys.flatten(2)

    def values(self, cache: Tensor) -> Tensor:
        if self.layout().order is None:
            return cache[..., self.head_dim :].clone()
        return self._packed(cache)[1].clone()

    def _packed(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a cache that has an order, each ``[num_blocks, num_heads, elements of a block]``."""
        return cache.view(*cache.shape[:2], -1).tensor_split((self.block_size * self.head_dim,), dim=-1)


SHAPES = {
    "llama-rows": Shape(2, 16, 64, 64, True, "rows"),
    "llama-cpu": Shape(2, 16, 64, 64, True, "transposed"),
    "llama-any-order": Shape(2, 8, 32, 32, True, "shuffled"),
    "one-head-odd-block": Shape(1, 5, 24, 24, True, "transposed"),
    "partial-rows": Shape(3, 4, 80, 32, True, "rows"),
    "partial-cpu": Shape(3, 4, 80, 32, True, "transposed"),
    "gptj-rows": Shape(2, 4, 48, 48, False, "rows"),
    "gptj-cpu": Shape(2, 4, 48, 48, False, "transposed"),
    "gptj-partial-any-order": Shape(2, 4, 48, 16, False, "shuffled"),
    "neox-latents": Shape(1, 16, 576, 64, True, "rows", rotary_offset=512, value_dim=0),
    "gptj-latents": Shape(1, 16, 576, 64, False, "rows", rotary_offset=512, value_dim=0),
    "neox-end-of-head-rows": Shape(2, 4, 96, 32, True, "rows", rotary_offset=64),
    "neox-end-of-head-cpu": Shape(2, 4, 96, 32, True, "transposed", rotary_offset=64),
    "gptj-middle-of-head-cpu": Shape(2, 4, 48, 16, False, "transposed", rotary_offset=7),
    "gptj-middle-of-head-any-order": Shape(2, 4, 48, 16, False, "shuffled", rotary_offset=7),
    "narrow-values-rows": Shape(2, 4, 48, 32, True, "rows", value_dim=16),
    "narrow-values-cpu": Shape(2, 4, 48, 32, True, "transposed", value_dim=16),
}
SOURCES, TARGETS, POSITIONS = (3, 1, 6), (3, 5, 6), (0, 700, 131_000)  # the second move copies


def frequencies(rotary_dim: int, scale: float) -> Frequencies:
    spec = RotarySpec(rotary_dim=rotary_dim, rope_theta=10000.0, original_max_position_embeddings=256)
    return Yarn().frequencies(spec, scale)


def rotated(keys: Tensor, positions: Tensor, by: Frequencies, shape: Shape) -> Tensor:
    """float64, as the formula has it: complex numbers, one for each pair."""
    keys = keys.double()
    before, rotary, after = keys.tensor_split((shape.rotary_offset, shape.rotary_offset + shape.rotary_dim), dim=-1)
    if shape.is_neox_style:
        pairs = torch.complex(*rotary.chunk(2, dim=-1))
    else:
        pairs = torch.view_as_complex(rotary.unflatten(-1, (-1, 2)).contiguous())
    angle = positions[..., None].double() * by.inv_freq.float().double()  # rounded as in the tables
    turned = pairs * torch.polar(torch.full_like(angle, by.attention_factor), angle)
    parts = (turned.real, turned.imag) if shape.is_neox_style else (torch.view_as_real(turned).flatten(-2),)
    return torch.cat((before, *parts, after), -1)


def moves() -> BlockMoves:
    return BlockMoves(
        sources=torch.tensor(SOURCES), targets=torch.tensor(TARGETS), first_positions=torch.tensor(POSITIONS)
    )


@pytest.mark.parametrize(
    "implementation", [pytest.param(ops.rerotate, id="served"), pytest.param(reference.rerotate, id="reference")]
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_turned_keys_are_keys_rotated_at_the_new_scale_and_nothing_else_changes(
    shape: Shape, implementation: Callable[..., None]
) -> None:
    before, after = frequencies(shape.rotary_dim, 2), frequencies(shape.rotary_dim, 4)
    cache = shape.empty(8, torch.float32)
    plain = shape.keys(cache)
    positions = torch.tensor(POSITIONS)[:, None] + torch.arange(shape.block_size)
    at = {source: positions[index][None].expand(shape.num_heads, -1) for index, source in enumerate(SOURCES)}
    written = plain.clone()
    for source in SOURCES:
        written[source] = rotated(plain[source], at[source], before, shape).float()
    shape.write_keys(cache, written)
    layers = [cache, cache.clone()]
    untouched = cache.clone()

    implementation(layers, moves(), ScaleChange.between(before, after), shape.layout())

    for layer in layers:
        keys, values = shape.keys(layer), shape.values(layer)
        for source, target in zip(SOURCES, TARGETS, strict=True):
            expected = rotated(plain[source], at[source], after, shape)
            assert (keys[target].double() - expected).abs().max() < KEY_ROUNDING * expected.abs().max()
            rest = [dim for dim in range(shape.head_dim) if not 0 <= dim - shape.rotary_offset < shape.rotary_dim]
            assert torch.equal(keys[target][..., rest], shape.keys(untouched)[source][..., rest])
            assert torch.equal(values[target], shape.values(untouched)[source])
        others = [block for block in range(8) if block not in TARGETS]
        assert torch.equal(layer[others], untouched[others])


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_keys_in_rows_or_columns_are_reached_by_strides_and_only_others_one_by_one(
    name: str,
) -> None:
    shape = SHAPES[name]
    changed = torch.ones(shape.rotary_dim // 2, dtype=torch.bool)
    changed[3] = False
    found = find_pairs(shape.layout(), changed, shape.empty(2, torch.float32).stride())
    kinds = {type(pairs).__name__ for pairs in found}
    assert kinds == {"ScatteredPairs" if name.endswith("any-order") else "StridedPairs"}
    assert sum(pairs.tokens.numel() for pairs in found) == shape.block_size * (shape.rotary_dim // 2 - 1)


def test_a_pair_whose_frequency_stays_is_left_bit_for_bit() -> None:
    shape = SHAPES["llama-cpu"]
    spec = RotarySpec(rotary_dim=64, rope_theta=500_000.0, original_max_position_embeddings=8192)
    before, after = Yarn().frequencies(spec, 1), Yarn().frequencies(spec, 4)
    after = dataclasses.replace(after, attention_factor=1.0)
    change = ScaleChange.between(before, after)
    same = [pair for pair in range(32) if before.inv_freq[pair] == after.inv_freq[pair]]
    assert len(same) > 5 and all(change.phases[pair] == 0 for pair in same)
    cache = shape.empty(8, torch.bfloat16)
    kept = shape.keys(cache)
    ops.rerotate([cache], moves(), change, shape.layout())
    dims = same + [pair + 32 for pair in same]
    assert torch.equal(shape.keys(cache)[3][..., dims], kept[3][..., dims])


def test_keys_without_the_attention_factor_keep_unchanged_pairs_to_the_bit() -> None:
    spec = RotarySpec(rotary_dim=64, rope_theta=10_000.0, original_max_position_embeddings=256)
    before, after = (Yarn().frequencies(spec, scale) for scale in (1, 4))
    assert after.attention_factor > 1.1
    pure, stock = (ScaleChange.between(before, after, factor_on_keys=on_keys) for on_keys in (False, True))
    unchanged = before.inv_freq.float() == after.inv_freq.float()
    assert 0 < unchanged.sum() < 32
    assert torch.equal(~unchanged, pure.is_changed())
    assert pure.attention_ratio == 1 and stock.is_changed().all()
    assert torch.equal(pure.phases, stock.phases)


@pytest.mark.parametrize("position", [1, 4_095, 131_071, 1_000_000, 8_400_000])
def test_the_angle_is_exact_at_any_position(position: int) -> None:
    before, after = frequencies(64, 1), frequencies(64, 8)
    change = ScaleChange.between(before, after)
    for pair, phase in enumerate(change.phases.tolist()):
        # float32 frequencies, as tables take them, and 2 pi to 40 digits
        frequency = Fraction(after.inv_freq[pair].float().item()) - Fraction(before.inv_freq[pair].float().item())
        turns = frequency * position / Fraction("6.283185307179586476925286766559005768394")
        wrapped = Fraction(phase * position % 2**64, 2**64)
        away = (turns - wrapped) % 1
        assert min(away, 1 - away) < Fraction(position, 2**63)


@pytest.mark.parametrize(
    ("method", "dtype", "bounds"),
    [
        pytest.param(Yarn(), torch.bfloat16, REROTATED_YARN_BFLOAT16, id="yarn"),
        pytest.param(Ntk(), torch.bfloat16, REROTATED_NTK_BFLOAT16, id="ntk"),
        pytest.param(Yarn(), torch.float8_e4m3fn, REROTATED_YARN_E4M3, id="yarn-e4m3"),
        pytest.param(Yarn(), torch.float8_e5m2, REROTATED_YARN_E5M2, id="yarn-e5m2"),
    ],
)
def test_keys_drift_with_every_crossing_no_further_than_rounding_takes_them(
    method: Yarn | Ntk, dtype: torch.dtype, bounds: tuple[float, ...]
) -> None:
    spec = RotarySpec(rotary_dim=128, rope_theta=500_000.0, original_max_position_embeddings=8192)
    shape = Shape(2, 32, 128, 128, True, "transposed")
    path = [method.frequencies(spec, scale) for scale in (1, 2, 4, 8, 16, 32, 64)]
    factor_on_keys = dtype == torch.bfloat16
    if not factor_on_keys:
        path = [dataclasses.replace(of_scale, attention_factor=1.0) for of_scale in path]
    cache = shape.empty(16, torch.float64)
    # float8 keys are in units of a scale that fits the largest of them; what scale that is makes no difference.
    scale = 1.0 if factor_on_keys else 5.5 / torch.finfo(dtype).max
    plain = shape.keys(cache) / scale
    first_positions = torch.arange(16) * 8_000
    positions = (first_positions[:, None] + torch.arange(32))[:, None].expand(-1, 2, -1)
    cache = cache.to(dtype)
    shape.write_keys(bits(cache), bits(rotated(plain, positions, path[0], shape).to(dtype)))
    blocks = torch.arange(16)
    all_blocks = BlockMoves(sources=blocks, targets=blocks, first_positions=first_positions)
    drift = []
    for before, after in itertools.pairwise(path):
        ops.rerotate([cache], all_blocks, ScaleChange.between(before, after), shape.layout())
        exact = rotated(plain, positions, after, shape)
        drift.append(((shape.keys(cache).double() - exact).norm() / exact.norm()).item())
    assert all(found <= bound for found, bound in zip(drift, bounds, strict=True)), drift


@pytest.mark.parametrize(
    "implementation", [pytest.param(ops.rerotate, id="served"), pytest.param(reference.rerotate, id="reference")]
)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=["e4m3", "e5m2"])
def test_float8_keys_that_grow_too_large_become_the_largest_number_and_nan_stays(
    dtype: torch.dtype, implementation: Callable[..., None]
) -> None:
    shape, largest = Shape(1, 4, 8, 8, True, "rows"), torch.finfo(dtype).max
    before = Frequencies(torch.full((4,), 0.25 * math.pi), 1.0)
    after = Frequencies(torch.full((4,), 0.5 * math.pi), 1.0)
    cache = torch.full((1, 1, 4, 16), largest).to(dtype)
    cache.view(torch.uint8)[0, 0, 1, 0] = 0x7F  # a NaN of both
    block = torch.tensor([0])
    implementation([cache], BlockMoves(block, block, block), ScaleChange.between(before, after), shape.layout())
    keys = cache.double()[0, 0, :, :8]
    # At positions 1 and 3, an eighth of a turn: of two equal elements one becomes 0 and the other 1.41 times as large.
    assert keys[1, [0, 4]].isnan().all() and keys.isnan().sum() == 2
    assert (keys[1, 5:] == largest).all() and (keys[1, 1:4].abs() < 1e-3 * largest).all()
    assert (keys[3, 4:].abs() < 1e-3 * largest).all() and (keys[3, :4] == -largest).all()

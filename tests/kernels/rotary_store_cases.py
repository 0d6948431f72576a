"""Rotations into the paged cache, by hand, and what they must leave in memory: complex numbers of exact angles."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales
from posenc_runtime.kernels.rotary.rotary_step import RotaryStep
from tests.tolerance import KEY_TURNED_BY_KERNEL, ROUNDED_TO_NEAREST, ROUNDED_TO_NEAREST_AT_ZERO

TWO_PI = Fraction("6.283185307179586476925286766559005768394")
NUM_BLOCKS = 6
BLOCK_SCALES = (1, 2, 1, 0, 1, 2)  # not 0 of block 0, so that padding is seen to take scale 0 and no block's
DIVISORS, FACTORS = (1, 2, 8), (1.0, 1.07, 1.25)  # of the frequencies, and of cosine and sine, at each scale
# Queries past 2.69, keys past 1.75 and values past 2.24 are clamped.
Q_SCALE, K_SCALE, V_SCALE = 0.006, 0.00390625, 0.005


@dataclasses.dataclass(frozen=True)
class Case:
    """A step's tokens, how their projections and the cache lie, and how they are rotated.

    Attributes:
        slots: of the first tokens; those past its end are padding.
        storage: of the cache: "tokens-first" is the transposed view that vLLM's CUDA backends hold, "heads-first" is
            contiguous, "spaced" has as much room after each block.
        packed: query, key and value are views of one projection.
        out_dtype: of what queries become out of place, if it is not theirs.
        scale_block_size: tokens per block of ``block_scale``.
        with_nans: some elements of the projections are none.
    """

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    rotary_dim: int = 32
    is_neox_style: bool = True
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    positions: tuple[int, ...] = (0, 1, 9, 131_001, 700)
    slots: tuple[int, ...] = (3, 4, -1, 17, 23)
    block_size: int = 4
    scale_block_size: int = 4
    index_dtype: torch.dtype = torch.int32
    storage: str = "tokens-first"
    packed: bool = False
    in_place: bool = True
    out_dtype: torch.dtype | None = None
    factor_on_keys: bool = False
    with_nans: bool = False

    def frequencies(self) -> list[Frequencies]:
        exponent = torch.arange(self.rotary_dim // 2, dtype=torch.float64) * -2 / self.rotary_dim
        return [
            Frequencies((10_000**exponent).float() / divisor, factor)
            for divisor, factor in zip(DIVISORS, FACTORS, strict=True)
        ]

    def scales(self) -> RotaryScales:
        block_scale = torch.tensor(BLOCK_SCALES, dtype=self.index_dtype)
        return RotaryScales.of(
            self.frequencies(), block_scale, self.scale_block_size, self.is_neox_style, self.factor_on_keys
        )

    def tensors(self) -> Tensors:
        return Tensors(self)


class Tensors:
    """Of one case: what a step has, and copies of it as it was.

    Attributes:
        memory: what lies under the cache.
        projected: what lies under query, key and value, one after the other if they are not packed.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(11)
        num_tokens, heads = len(case.positions), (case.num_heads, case.num_kv_heads, case.num_kv_heads)
        self.projected = torch.randn(num_tokens * sum(heads) * case.head_dim, generator=generator).to(case.dtype)
        if case.with_nans:
            self.projected[::97] = math.nan
        self.query, self.key, self.value = self.split(self.projected)
        self.out = torch.full_like(self.query, math.nan, dtype=case.out_dtype).contiguous()
        size = NUM_BLOCKS * case.num_kv_heads * case.block_size * 2 * case.head_dim
        room = 2 if case.storage == "spaced" else 1
        self.memory = torch.randn(room * size, generator=generator).to(case.cache_dtype or case.dtype)
        self.cache = self.cache_in(self.memory)
        self.projected_before, self.memory_before = self.projected.clone(), self.memory.clone()

    def step(self) -> RotaryStep:
        case = self.case
        return RotaryStep(
            self.query,
            self.key,
            self.value,
            self.cache,
            torch.tensor(case.positions),
            torch.tensor(case.slots, dtype=torch.int64),
            case.scales(),
            torch.tensor(K_SCALE),
            torch.tensor([V_SCALE]),
            None if case.in_place else self.out,
            torch.tensor(Q_SCALE),
        )

    def split(self, projected: Tensor) -> list[Tensor]:
        case, num_tokens = self.case, len(self.case.positions)
        widths = [heads * case.head_dim for heads in (case.num_heads, case.num_kv_heads, case.num_kv_heads)]
        if case.packed:
            parts = projected.view(num_tokens, -1).split(widths, dim=1)
            return [part.unflatten(1, (-1, case.head_dim)) for part in parts]
        parts = projected.split([num_tokens * width for width in widths])
        return [
            part.view(num_tokens, width // case.head_dim, case.head_dim)
            for part, width in zip(parts, widths, strict=True)
        ]

    def cache_in(self, memory: Tensor) -> Tensor:
        case = self.case
        heads, tokens, width = case.num_kv_heads, case.block_size, 2 * case.head_dim
        if case.storage == "tokens-first":
            return memory.view(NUM_BLOCKS, tokens, heads, width).transpose(1, 2)
        if case.storage == "spaced":
            return memory.view(NUM_BLOCKS, 2, heads, tokens, width)[:, 0]
        return memory.view(NUM_BLOCKS, heads, tokens, width)

    def faults(self) -> list[str]:
        """What is wrong after the rotation, in words."""
        case, found = self.case, []
        query, key, value = self.split(self.projected_before)
        rotated = self.query if case.in_place else self.out
        for token, position in enumerate(case.positions):
            slot = case.slots[token] if token < len(case.slots) else -1
            scale = 0 if slot < 0 else BLOCK_SCALES[slot // case.scale_block_size]
            factor = torch.tensor(FACTORS[scale]).double().item()  # as float32 holds it
            on_query, on_key = (factor, factor) if case.factor_on_keys else (factor**2, 1.0)
            turn = self.turn(position, scale)
            found += _wrong(f"query {token}", rotated[token], self.rotated(query[token], on_query * turn), Q_SCALE)
            if slot >= 0:
                block, place = divmod(slot, case.block_size)
                row = self.cache[block, :, place].clone()
                self.cache[block, :, place] = self.cache_in(self.memory_before)[block, :, place]
                keys, values = row.split(case.head_dim, dim=-1)
                found += _wrong(f"key {token}", keys, self.rotated(key[token], on_key * turn), K_SCALE)
                found += _wrong(f"value {token}", values, (value[token].double(), value[token].double().abs()), V_SCALE)
                found += self.changed(f"rest of key {token}", keys[:, case.rotary_dim :], key[token])
                found += self.changed(f"value {token}", values, value[token])
            found += self.changed(f"rest of query {token}", rotated[token][:, case.rotary_dim :], query[token])
        if case.in_place:
            self.query.copy_(query)
        if not same_bits(self.projected, self.projected_before):
            found.append("keys, values or queries that are not rotated in place have changed")
        if not same_bits(self.memory, self.memory_before):
            found.append("cache outside the slots has changed")
        return found

    def turn(self, position: int, scale: int) -> Tensor:
        """complex128 ``[rotary_dim // 2]``."""
        frequencies = self.case.frequencies()[scale].inv_freq.tolist()
        angles = [float(Fraction(value) * position / TWO_PI % 1 * TWO_PI) for value in frequencies]
        return torch.polar(torch.ones(len(angles), dtype=torch.float64), torch.tensor(angles, dtype=torch.float64))

    def rotated(self, heads: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        """What heads ``[num_heads, head_dim]`` must become, and of each element the length of its pair; float64."""
        pair = torch.arange(self.case.rotary_dim // 2)
        first, second = (pair, pair + len(pair)) if self.case.is_neox_style else (2 * pair, 2 * pair + 1)
        expected = heads.double().clone()
        length = expected.abs()
        turned = torch.complex(expected[:, first], expected[:, second]) * turn
        expected[:, first], expected[:, second] = turned.real, turned.imag
        length[:, first] = length[:, second] = turned.abs()
        return expected, length

    def changed(self, name: str, found: Tensor, given: Tensor) -> list[str]:
        """What is only copied is the same to the bit, where its data type is."""
        copied = given[:, given.shape[1] - found.shape[1] :]
        if found.dtype != copied.dtype or same_bits(found, copied):
            return []
        return [f"{name} is not a copy"]


def _wrong(name: str, found: Tensor, expected_and_length: tuple[Tensor, Tensor], scale: float = 1.0) -> list[str]:
    expected, length = expected_and_length
    dtype = str(found.dtype).removeprefix("torch.")
    stored = found.double()
    if dtype == "float8_e4m3fn":
        stored, expected = stored * scale, expected.clamp(-448 * scale, 448 * scale)
        smallest = scale * ROUNDED_TO_NEAREST_AT_ZERO[dtype]
    else:
        smallest = ROUNDED_TO_NEAREST_AT_ZERO[dtype]
    tolerated = KEY_TURNED_BY_KERNEL * length + ROUNDED_TO_NEAREST[dtype] * expected.abs() + smallest
    errors = ((stored - expected).abs() / tolerated).masked_fill(stored.isnan() & expected.isnan(), 0)
    error = errors.max().item()
    return [] if error <= 1 else [f"{name} is wrong by {error:.2f} times the tolerance"]  # nor a NaN


def same_bits(one: Tensor, other: Tensor) -> bool:
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[one.element_size()]
    return torch.equal(one.contiguous().view(integer), other.contiguous().view(integer))


_FLOAT8 = torch.float8_e4m3fn
CASES = {
    "neox": Case(),
    "gptj": Case(is_neox_style=False),
    "neox-partial": Case(head_dim=40, rotary_dim=16),
    "gptj-partial": Case(head_dim=40, rotary_dim=12, is_neox_style=False),
    "neox-partial-out-of-place": Case(head_dim=40, rotary_dim=16, in_place=False),
    "gptj-partial-out-of-place": Case(head_dim=40, rotary_dim=12, is_neox_style=False, in_place=False),
    "out-of-place": Case(in_place=False),
    "twelve-heads-of-64": Case(num_heads=12, num_kv_heads=12, head_dim=64, rotary_dim=64),
    "eight-to-one-by-128": Case(num_heads=16, num_kv_heads=2, head_dim=128, rotary_dim=128, slots=(7, 8, -1, 17, 0)),
    "one-kv-head": Case(num_heads=9, num_kv_heads=1),
    "seventeen-kv-heads": Case(num_heads=17, num_kv_heads=17, head_dim=16, rotary_dim=16),
    "thirty-two-kv-heads-by-128": Case(
        num_heads=32, num_kv_heads=32, head_dim=128, rotary_dim=128, slots=(7, 8, -1, 17, 0)
    ),
    "heads-of-80-partly-packed": Case(head_dim=80, rotary_dim=32, packed=True),
    "heads-of-80": Case(head_dim=80, rotary_dim=80, is_neox_style=False),
    "one-token": Case(positions=(5,), slots=(9,)),
    "one-padded-token": Case(positions=(5,), slots=(-1,)),
    "padding-past-the-slots": Case(slots=(3, 4)),
    "more-slots-than-tokens": Case(positions=(8, 9), slots=(3, 4, 20)),
    "no-slot": Case(slots=()),
    "over-a-block-boundary": Case(positions=(10, 11, 12, 13), slots=(14, 15, 16, 8)),
    "blocks-of-5": Case(block_size=5, scale_block_size=5, slots=(4, 5, -1, 29, 14)),
    "scales-of-larger-blocks": Case(scale_block_size=8, slots=(3, 4, 8, 17, 23)),
    "scales-as-int64": Case(index_dtype=torch.int64),
    "packed": Case(packed=True),
    "packed-out-of-place": Case(packed=True, in_place=False, is_neox_style=False),
    "cache-heads-first": Case(storage="heads-first"),
    "cache-spaced": Case(storage="spaced", is_neox_style=False),
    "positions-to-the-end": Case(positions=(2**31, 2**31 - 1, 2**31 - 9, 1_048_575, 2**30)),
    "stock-bytes": Case(factor_on_keys=True),
    "stock-bytes-gptj-bfloat16": Case(factor_on_keys=True, is_neox_style=False, dtype=torch.bfloat16),
    "bfloat16": Case(dtype=torch.bfloat16, packed=True),
    "gptj-bfloat16": Case(dtype=torch.bfloat16, is_neox_style=False, head_dim=40, rotary_dim=16),
    "float16": Case(dtype=torch.float16),
    "float32-cached-as-bfloat16": Case(cache_dtype=torch.bfloat16),
    "float8": Case(dtype=torch.bfloat16, cache_dtype=_FLOAT8),
    "gptj-float8-partial": Case(
        dtype=torch.float16, cache_dtype=_FLOAT8, is_neox_style=False, head_dim=40, rotary_dim=16, packed=True
    ),
    "float8-with-nans": Case(dtype=torch.bfloat16, cache_dtype=_FLOAT8, with_nans=True),
    "float8-queries": Case(dtype=torch.bfloat16, cache_dtype=_FLOAT8, packed=True, in_place=False, out_dtype=_FLOAT8),
    "gptj-float8-queries-partial": Case(
        dtype=torch.float16,
        is_neox_style=False,
        head_dim=40,
        rotary_dim=16,
        in_place=False,
        out_dtype=_FLOAT8,
        with_nans=True,
    ),
    "float8-stock-bytes": Case(cache_dtype=_FLOAT8, factor_on_keys=True, storage="spaced"),
}
# whose programs go on to further tiles of a token, as they do where there are many tokens
IN_ONE_PROGRAM = (
    *("eight-to-one-by-128", "seventeen-kv-heads", "thirty-two-kv-heads-by-128"),
    "gptj-partial-out-of-place",
)

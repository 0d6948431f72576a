"""The table of cosines and sines."""

from __future__ import annotations

import math

import pytest
import torch

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.encodings.table import cos_sin_cache, fill_cos_sin
from tests.encodings.held_memory import HeldMemory
from tests.tolerance import ROUNDED_TO_FLOAT32

ONE_ULP = 2**-24  # half the spacing of float32 just below 1


def test_a_row_holds_cosines_then_sines_of_its_position() -> None:
    table = cos_sin_cache(Frequencies(torch.tensor([1.0, 0.5], dtype=torch.float64)), 3)
    expected = [[math.cos(m), math.cos(m / 2), math.sin(m), math.sin(m / 2)] for m in range(3)]
    torch.testing.assert_close(table, torch.tensor(expected), rtol=0, atol=ONE_ULP)
    assert table.dtype == torch.float32


def test_the_attention_factor_multiplies_cosines_and_sines() -> None:
    inv_freq = torch.tensor([1.0, 0.5], dtype=torch.float64)
    plain, scaled = cos_sin_cache(Frequencies(inv_freq), 64), cos_sin_cache(Frequencies(inv_freq, 1.25), 64)
    torch.testing.assert_close(scaled, plain * 1.25, rtol=2 * ONE_ULP, atol=0)


def test_angles_at_a_million_positions_are_exact_to_float32() -> None:
    # math.fmod of exact float64 products: the float32 product would be wrong by 3e-2 rad here.
    inv_freq = torch.tensor([0.7310585975646973], dtype=torch.float64).float().double()
    table = cos_sin_cache(Frequencies(inv_freq), 2**20)
    position = 2**20 - 1
    angle = math.fmod(position * inv_freq.item(), 2 * math.pi)
    assert abs(table[position, 0].item() - math.cos(angle)) < ROUNDED_TO_FLOAT32
    assert abs(table[position, 1].item() - math.sin(angle)) < ROUNDED_TO_FLOAT32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_table_of_a_million_positions_is_filled_with_64_mb_beside_it(dtype: torch.dtype) -> None:
    inv_freq = torch.full((8,), 0.5, dtype=torch.float64)
    table = torch.empty(2**20, 16, dtype=dtype)
    with HeldMemory() as memory:
        fill_cos_sin(table, Frequencies(inv_freq))
    assert 0 < memory.most <= 64e6


def test_a_table_that_is_filled_in_pieces_is_the_same_to_the_bit() -> None:
    inv_freq = 10000.0 ** -(torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    num_positions = 40_001  # three pieces, the last one short
    table = cos_sin_cache(Frequencies(inv_freq, 1.2079441541679836), num_positions)
    angle = torch.outer(torch.arange(num_positions, dtype=torch.float64), inv_freq.float().double())
    whole = (torch.cat((angle.cos(), angle.sin()), dim=-1) * 1.2079441541679836).float()
    assert torch.equal(table, whole)


def test_a_table_of_another_data_type_is_that_of_float32_rounded() -> None:
    frequencies = Frequencies(torch.tensor([0.7, 0.013], dtype=torch.float64), 1.1)
    table = torch.empty(1000, 4, dtype=torch.bfloat16)
    fill_cos_sin(table, frequencies)
    assert torch.equal(table, cos_sin_cache(frequencies, 1000).bfloat16())

"""The table of cosines and sines."""

from __future__ import annotations

import math

import torch

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.encodings.table import cos_sin_cache
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

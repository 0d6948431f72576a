"""ALiBi against sums done by hand, the paper's slopes, and the biases of BLOOM and MPT."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from tests.references.alibi import alibi_attention, alibi_slopes, alibi_sqrt_attention
from tests.references.by_hand import QUERY, THREE_KEYS, THREE_VALUES, VALUES, weighted
from tests.tolerance import ALIBI_BIAS_RELATIVE, ORACLE_FLOAT64


def test_alibi_falls_by_a_slope_per_token() -> None:
    output = alibi_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, [0.75])
    expected = weighted([0.5 - 2 * 0.75, 2.5 - 0.75, 2.0], VALUES)
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_alibi_of_the_root_falls_by_a_slope_times_the_root_of_the_distance() -> None:
    output = alibi_sqrt_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, [0.75])
    expected = weighted([0.5 - math.sqrt(2) * 0.75, 2.5 - 0.75, 2.0], VALUES)
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_alibi_slopes_of_8_heads_are_the_paper_s() -> None:
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_alibi_slopes_of_16_heads_are_the_paper_s() -> None:
    assert alibi_slopes(16) == pytest.approx([0.5 ** (half / 2) for half in range(1, 17)], rel=ORACLE_FLOAT64)


def test_alibi_slopes_of_12_heads_are_those_of_8_and_every_other_of_16() -> None:
    assert alibi_slopes(12)[:8] == alibi_slopes(8)
    expected = [0.5**0.5, 0.5**1.5, 0.5**2.5, 0.5**3.5]
    assert alibi_slopes(12)[8:] == pytest.approx(expected, rel=ORACLE_FLOAT64)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 40, 71])
def test_alibi_is_bloom_s(num_heads: int) -> None:
    published = build_alibi_tensor(torch.ones(1, 33), num_heads, torch.float32)[:, 0].double()
    # BLOOM counts from the first key, which adds the same to all scores of a query.
    biases = published - published[:, -1:]
    expected = -torch.tensor(alibi_slopes(num_heads), dtype=torch.float64)[:, None] * torch.arange(32, -1, -1)
    largest = (expected[:, :1].abs() * ALIBI_BIAS_RELATIVE).expand_as(expected)
    assert ((biases - expected).abs() <= largest).all()


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 40, 71])
def test_alibi_is_mpt_s(num_heads: int) -> None:
    published = build_mpt_alibi_tensor(num_heads, 33)[:, 0].double()
    expected = -torch.tensor(alibi_slopes(num_heads), dtype=torch.float64)[:, None] * torch.arange(32, -1, -1)
    torch.testing.assert_close(published, expected, rtol=ALIBI_BIAS_RELATIVE, atol=0)

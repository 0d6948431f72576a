"""Shaw's relative positions against a sum done by hand, and where they encode nothing."""

from __future__ import annotations

import pytest
import torch

from tests.references.by_hand import QUERY, THREE_KEYS, THREE_VALUES, weighted
from tests.references.drawn_sequence import HEAD_DIM, SCALE, assert_same, sequence
from tests.references.no_position import no_position_attention
from tests.references.shaw import shaw_attention
from tests.tolerance import ORACLE_FLOAT64


def test_shaw_adds_vectors_of_clipped_offsets_to_keys_and_values() -> None:
    # Offsets -1, 0 and 1, of which -1 also stands for -2; their products with the query are 4, -1 and 90.
    key_table = torch.tensor([[0, 2], [1, -1], [50, 20]], dtype=torch.float64)
    value_table = torch.tensor([[7], [0.5], [900]], dtype=torch.float64)
    output = shaw_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, key_table, value_table)
    expected = weighted([(1 + 4) / 2, (5 + 4) / 2, (4 - 1) / 2], [10 + 7, 20 + 7, 40 + 0.5])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_shaw_with_tables_of_zeros_encodes_nothing() -> None:
    zeros = torch.zeros(7, HEAD_DIM, dtype=torch.float64)
    assert_same(shaw_attention(*sequence(), SCALE, zeros, zeros), no_position_attention(*sequence(), SCALE))

"""CoPE, as the paper lists it and as its repository has it, against sums done by hand and limiting cases."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.references.by_hand import VALUES, one_head, weighted
from tests.references.cope import cope_attention_of_the_listing, cope_attention_of_the_repository
from tests.references.drawn_sequence import COPE_TABLE, HEADS, KEYS, SCALE, assert_differ, assert_same, sequence
from tests.references.no_position import no_position_attention
from tests.tolerance import ORACLE_FLOAT64


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


# Products 0.6 and -0.4 with two keys; scaled by a half 0.3 and -0.2.
COPE_PAIR = (one_head([2, -1]), one_head([0.5, 0.4], [0.1, 0.6]), one_head([10], [20]))
# Products of the query with the embeddings of positions 0, 1 and 2: 1, -2 and 3.
COPE_HAND_TABLE = torch.tensor([[1, 1], [0, 2], [2, 1]], dtype=torch.float64)
COPE_OWN = sigmoid(-0.2)
COPE_BOTH = sigmoid(-0.2) + sigmoid(0.3)


def cope_position_products() -> list[float]:
    assert 0 < COPE_OWN < 1 < COPE_BOTH < 2
    own = COPE_OWN * -2 + (1 - COPE_OWN) * 1
    return [(COPE_BOTH - 1) * 3 + (2 - COPE_BOTH) * -2, own]


def test_cope_of_the_listing_adds_the_position_unscaled() -> None:
    output = cope_attention_of_the_listing(*COPE_PAIR, 0.5, COPE_HAND_TABLE)
    first, own = cope_position_products()
    assert output.item() == pytest.approx(weighted([0.3 + first, -0.2 + own], VALUES[:2]), rel=ORACLE_FLOAT64)


def test_cope_of_the_repository_scales_content_and_position_together() -> None:
    output = cope_attention_of_the_repository(*COPE_PAIR, 0.5, COPE_HAND_TABLE)
    first, own = cope_position_products()
    expected = weighted([0.3 + first / 2, -0.2 + own / 2], VALUES[:2])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_positions_of_cope_end_with_the_table() -> None:
    output = cope_attention_of_the_listing(*COPE_PAIR, 0.5, COPE_HAND_TABLE[:2])
    own = cope_position_products()[1]
    assert output.item() == pytest.approx(weighted([0.3 - 2, -0.2 + own], VALUES[:2]), rel=ORACLE_FLOAT64)


def test_open_gates_of_cope_count_tokens() -> None:
    query, key, value = sequence()
    query[..., 0], key[..., 0] = 50, 4
    expected = torch.empty_like(query)
    for head in range(HEADS):
        keys, values = key[:, head // 2], value[:, head // 2]
        for i in range(KEYS):
            # All gates are 1: a key is as many tokens away as lie from it to the query, both included.
            embedded = torch.stack([COPE_TABLE[min(i - j + 1, 4)] for j in range(i + 1)])
            scores = SCALE * keys[: i + 1] @ query[i, head] + embedded @ query[i, head]
            expected[i, head] = scores.softmax(0) @ values[: i + 1]
    assert_same(cope_attention_of_the_listing(query, key, value, SCALE, COPE_TABLE), expected)


@pytest.mark.parametrize("attention", [cope_attention_of_the_listing, cope_attention_of_the_repository])
def test_cope_with_a_table_of_zeros_encodes_nothing(attention: Callable[..., Tensor]) -> None:
    output = attention(*sequence(), SCALE, torch.zeros_like(COPE_TABLE))
    assert_same(output, no_position_attention(*sequence(), SCALE))


def test_conventions_of_cope_differ_by_the_scale_of_the_table() -> None:
    repository = cope_attention_of_the_repository(*sequence(), SCALE, COPE_TABLE)
    assert_same(repository, cope_attention_of_the_listing(*sequence(), SCALE, SCALE * COPE_TABLE))
    assert_differ(repository, cope_attention_of_the_listing(*sequence(), SCALE, COPE_TABLE))

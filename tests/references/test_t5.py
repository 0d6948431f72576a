"""T5's biases against sums done by hand, and its buckets against transformers'."""

from __future__ import annotations

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from tests.references.by_hand import QUERY, THREE_KEYS, THREE_VALUES, VALUES, one_head, weighted
from tests.references.t5 import t5_attention, t5_bucket
from tests.tolerance import ORACLE_FLOAT64


def test_t5_adds_the_bias_of_a_bucket() -> None:
    table = torch.tensor([[0.25], [-1.0], [2.0], [9.0]], dtype=torch.float64)
    output = t5_attention(QUERY, THREE_KEYS, THREE_VALUES, 0.5, table, max_distance=8)
    assert output.item() == pytest.approx(weighted([0.5 + 2.0, 2.5 - 1.0, 2.0 + 0.25], VALUES), rel=ORACLE_FLOAT64)


def test_t5_s_last_bucket_begins_below_the_largest_distance() -> None:
    table = torch.tensor([[0.0], [0.0], [0.0], [2.0]], dtype=torch.float64)
    query, key, value = one_head([0]), one_head(*[[1]] * 6), one_head([1], [2], [3], [4], [5], [6])
    output = t5_attention(query, key, value, 1.0, table, max_distance=8)
    # 4 and 5 tokens away, as the next test has it.
    expected = weighted([2.0, 2.0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6])
    assert output.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


def test_half_of_t5_s_buckets_hold_one_distance_each() -> None:
    # 2 + log(n / 2) / log(4) * 2: 2 at 2, 2.6 at 3, 3 at 4.
    assert [t5_bucket(distance, 4, 8) for distance in range(10)] == [0, 1, 2, 2, 3, 3, 3, 3, 3, 3]


def test_t5_s_32_buckets_begin_at_its_distances() -> None:
    first = {}
    for distance in range(200):
        first.setdefault(t5_bucket(distance), distance)
    # 16 * 8^(k / 16), rounded up.
    later = [19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert list(first.items()) == list(enumerate([*range(17), *later]))


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (64, 128), (32, 256), (16, 1000), (7, 20)])
def test_t5_s_buckets_are_those_of_transformers(num_buckets: int, max_distance: int) -> None:
    distances = range(3000)
    published = T5Attention._relative_position_bucket(
        -torch.tensor(distances), bidirectional=False, num_buckets=num_buckets, max_distance=max_distance
    )
    assert [t5_bucket(distance, num_buckets, max_distance) for distance in distances] == published.tolist()

"""The Triton kernels of attention at read time in the interpreter, against the oracle."""

from __future__ import annotations

import json

import pytest

from tests.kernels.processes import output_of
from tests.kernels.read_time_cases import TRITON_CASES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def faults() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(output_of("interpret_read_time.py", TRITON_INTERPRET="1"))
    return found


@pytest.mark.parametrize("name", TRITON_CASES)
def test_attention_at_read_time_is_no_worse_than_torch(name: str, faults: dict[str, list[str]]) -> None:
    assert faults[name] == []


def test_a_requests_output_is_the_same_to_the_bit_in_every_batch(faults: dict[str, list[str]]) -> None:
    assert faults["in another batch"] == []


def test_far_queries_alone_get_the_same_bits_and_the_others_are_left_as_they_are(faults: dict[str, list[str]]) -> None:
    assert faults["only far"] == []

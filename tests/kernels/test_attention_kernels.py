"""The Triton kernels of attention in the interpreter, against dense attention in float64."""

from __future__ import annotations

import json

import pytest

from tests.kernels.attention_cases import BIAS_CASES, COPE_CASES
from tests.kernels.processes import output_of

pytestmark = pytest.mark.slow

Faults = dict[str, list[str]]


@pytest.fixture(scope="module")
def faults() -> dict[str, Faults]:
    kinds = ("bias", "cope", "key_norms")
    output = output_of(*(f"interpret_{kind}.py" for kind in kinds), TRITON_INTERPRET="1")
    return dict(zip(kinds, map(json.loads, output.splitlines()), strict=True))


@pytest.fixture
def bias_faults(faults: dict[str, Faults]) -> Faults:
    return faults["bias"]


@pytest.fixture
def cope_faults(faults: dict[str, Faults]) -> Faults:
    return faults["cope"]


@pytest.mark.parametrize("name", BIAS_CASES)
def test_biased_attention_is_no_worse_than_torch_and_reads_what_its_window_says(name: str, bias_faults: Faults) -> None:
    assert bias_faults[name] == []


def test_a_requests_output_is_the_same_to_the_bit_in_every_batch(bias_faults: Faults, cope_faults: Faults) -> None:
    assert bias_faults["in another batch"] == cope_faults["in another batch"] == []


@pytest.mark.parametrize("name", COPE_CASES)
def test_contextual_positions_are_no_worse_than_torch(name: str, cope_faults: Faults) -> None:
    assert cope_faults[name] == []


def test_contextual_positions_are_the_same_bits_at_all_tile_sizes_by_scan_or_product() -> None:
    # So they are whatever the order of additions, which on a GPU is the compiler's, and of which it has two at a time.
    differing = json.loads(output_of("interpret_positions.py", TRITON_INTERPRET="1"))
    assert len(differing) == 10 and set(differing.values()) == {0}


def test_norms_are_recorded_as_the_running_maximum_of_their_block(faults: dict[str, Faults]) -> None:
    assert {name: found for name, found in faults["key_norms"].items() if found} == {}

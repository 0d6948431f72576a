"""The Triton kernels of attention in the interpreter, against dense attention in float64."""

from __future__ import annotations

import json

import pytest

from tests.kernels.attention_cases import BIAS_CASES, COPE_CASES
from tests.kernels.processes import output_of

Faults = dict[str, list[str]]


def interpreted(script: str) -> Faults:
    found: Faults = json.loads(output_of(script, TRITON_INTERPRET="1"))
    return found


@pytest.fixture(scope="module")
def bias_faults() -> Faults:
    return interpreted("interpret_bias.py")


@pytest.fixture(scope="module")
def cope_faults() -> Faults:
    return interpreted("interpret_cope.py")


@pytest.mark.parametrize("name", BIAS_CASES)
def test_biased_attention_is_no_worse_than_torch_and_reads_what_its_window_says(name: str, bias_faults: Faults) -> None:
    assert bias_faults[name] == []


def test_a_requests_output_is_the_same_to_the_bit_in_every_batch(bias_faults: Faults) -> None:
    assert bias_faults["in another batch"] == []


@pytest.mark.parametrize("name", COPE_CASES)
def test_contextual_positions_are_no_worse_than_torch(name: str, cope_faults: Faults) -> None:
    assert cope_faults[name] == []


def test_norms_are_recorded_as_the_running_maximum_of_their_block() -> None:
    assert {name: found for name, found in interpreted("interpret_key_norms.py").items() if found} == {}

"""The Triton kernel of re-rotation in the interpreter, against float64."""

from __future__ import annotations

import json

import pytest

from tests.kernels.processes import output_of
from tests.kernels.rerotate_cases import CASES
from tests.tolerance import COS_SIN_OF_TURNS


@pytest.fixture(scope="module")
def faults() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(output_of("interpret_rerotate.py", TRITON_INTERPRET="1"))
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_turns_keys_to_the_new_scale_and_changes_nothing_else(
    name: str, faults: dict[str, list[str]]
) -> None:
    assert faults[name] == []


def test_cosines_and_sines_are_right_over_the_whole_range_of_angles() -> None:
    cos_error, sin_error = map(float, output_of("interpret_turns.py", TRITON_INTERPRET="1").split())
    assert cos_error <= COS_SIN_OF_TURNS
    assert sin_error <= COS_SIN_OF_TURNS

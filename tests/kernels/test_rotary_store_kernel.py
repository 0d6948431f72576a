"""The Triton kernel that rotates into the paged cache, in the interpreter, against exact angles in float64."""

from __future__ import annotations

import json

import pytest

from tests.kernels.processes import output_of
from tests.kernels.rotary_store_cases import CASES, IN_ONE_PROGRAM
from tests.tolerance import LOGITS_BETTER_THAN_TABLES

pytestmark = pytest.mark.slow

Faults = dict[str, list[str]]
Errors = dict[str, tuple[float, float]]


@pytest.fixture(scope="module")
def found() -> tuple[Faults, Errors]:
    output = output_of("interpret_rotary_store.py", "interpret_rotary_precision.py", TRITON_INTERPRET="1")
    faults, errors = map(json.loads, output.splitlines())
    return faults, errors


@pytest.fixture
def faults(found: tuple[Faults, Errors]) -> Faults:
    return found[0]


@pytest.fixture
def errors(found: tuple[Faults, Errors]) -> Errors:
    return found[1]


@pytest.mark.parametrize("name", [*CASES, *(f"{name} in one program" for name in IN_ONE_PROGRAM)])
def test_the_kernel_rotates_by_the_scale_of_each_block_and_writes_nothing_else(name: str, faults: Faults) -> None:
    assert faults[name] == []


def test_logits_are_no_worse_than_those_of_float32_tables_at_any_position(
    errors: Errors,
) -> None:
    assert all(by_kernel <= by_tables for by_kernel, by_tables in errors.values()), errors


@pytest.mark.parametrize("dtype", LOGITS_BETTER_THAN_TABLES)
def test_logits_near_position_a_million_are_several_times_better_than_with_tables(dtype: str, errors: Errors) -> None:
    by_kernel, by_tables = errors[f"torch.{dtype} from 1048000"]
    assert LOGITS_BETTER_THAN_TABLES[dtype] * by_kernel <= by_tables

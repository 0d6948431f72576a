"""The Triton kernel of re-rotation in the interpreter, against float64."""

from __future__ import annotations

import json

import pytest

from posenc_runtime.kernels.rotary.launches import heads_of_program
from tests.kernels.processes import output_of
from tests.kernels.rerotate_cases import CASES
from tests.tolerance import COS_SIN_OF_TURNS

pytestmark = pytest.mark.slow

Faults = dict[str, list[str]]
Errors = tuple[float, float]


@pytest.fixture(scope="module")
def found() -> tuple[Faults, Errors]:
    faults, errors = output_of("interpret_rerotate.py", "interpret_turns.py", TRITON_INTERPRET="1").splitlines()
    cos_error, sin_error = map(float, errors.split())
    return json.loads(faults), (cos_error, sin_error)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_turns_keys_to_the_new_scale_and_changes_nothing_else(
    name: str, found: tuple[Faults, Errors]
) -> None:
    assert found[0][name] == []


def test_cosines_and_sines_are_right_over_the_whole_range_of_angles(found: tuple[Faults, Errors]) -> None:
    assert all(error <= COS_SIN_OF_TURNS for error in found[1])


@pytest.mark.parametrize(
    ("num_tiles", "heads", "programs"),
    [
        pytest.param(1, 8, 32, id="a-block-by-eight-heads"),  # of a layer, as each takes at least
        pytest.param(16, 8, 512, id="a-few-blocks-by-eight-heads"),
        pytest.param(128, 37, 896, id="a-steps-blocks-by-several-layers"),
        pytest.param(1024, 86, 3072, id="many-blocks-by-many-layers"),
        pytest.param(8192, 256, 8192, id="very-many-blocks-by-all-layers"),
    ],
)
def test_layers_share_cosines_and_sines_as_far_as_programs_are_many_enough(
    num_tiles: int, heads: int, programs: int
) -> None:
    all_heads = 32 * 8
    assert heads_of_program(num_tiles, all_heads) == heads
    assert num_tiles * -(-all_heads // heads) == programs

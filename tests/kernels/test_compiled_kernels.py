"""What the compiler makes of the Triton kernels for an H100, carried out by a machine of ours, which needs no GPU.

The interpreter knows no threads, no shared memory, no rounding of a tensor core, and runs programs in their order.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.kernels.compiled_cases import (
    BIAS,
    COPE,
    COPE_WITHOUT_ROOM,
    READ_TIME,
    REROTATE,
    ROPE_ROWS,
    ROTARY_STORE,
)
from tests.kernels.interpret_key_norms import LAUNCHES
from tests.kernels.processes import output_of

pytestmark = pytest.mark.compiled

OF_KERNELS = {
    "rerotate": REROTATE,
    "rotary_store": ROTARY_STORE,
    "rope_rows": ROPE_ROWS,
    "key_norms": LAUNCHES,
    "bias": BIAS,
    "cope": COPE,
    "cope_without_room": COPE_WITHOUT_ROOM,
    "read_time": READ_TIME,
}
# What an H100 has run is run here again before a release.
NO_GPU_HAS_RUN = ("read_time",)


@pytest.fixture(scope="module")
def faults_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, list[str]]]:
    """What is wrong with each case of some kernels."""
    cache = str(tmp_path_factory.mktemp("triton"))

    @functools.cache
    def found(kernels: str) -> dict[str, list[str]]:
        of_cases: dict[str, list[str]] = json.loads(
            output_of("execute_compiled.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache, KERNELS=kernels)
        )
        return of_cases

    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache = str(tmp_path_factory.mktemp("triton"))
    found: dict[str, Any] = json.loads(
        output_of("execute_small_kernels.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache)
    )
    return found


@pytest.mark.parametrize(
    ("kernels", "name"),
    [
        pytest.param(kernels, name, marks=() if kernels in NO_GPU_HAS_RUN else pytest.mark.release)
        for kernels, cases in OF_KERNELS.items()
        for name in cases
    ],
)
def test_compiled_kernels_are_right_and_touch_only_what_is_theirs(
    kernels: str, name: str, faults_of: Callable[[str], dict[str, list[str]]]
) -> None:
    assert faults_of(kernels)[f"{kernels} {name}"] == []


@pytest.mark.parametrize("generation", ["sm_80", "sm_90"])
def test_the_machine_computes_what_is_known(generation: str, small: dict[str, Any]) -> None:
    assert len(small["right"][generation]) > 32
    assert {name: error for name, error in small["right"][generation].items() if error > 1} == {}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("past the end", "out of bounds of all tensors"),
        ("into another's", "what another program"),
        ("without barriers", "without a barrier between"),
        ("without waiting", "the product is wrong"),
    ],
)
def test_the_machine_sees_what_it_is_there_for(fault: str, said: str, small: dict[str, Any]) -> None:
    assert any(said in each for each in small["faults"][fault])

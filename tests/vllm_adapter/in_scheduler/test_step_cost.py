"""What a step costs grows with the running requests as stock vLLM's does, and with nothing else.

Counted in calls of Python functions, which depend on no clock. Times are in ``tests/benchmarks/scheduler``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
from vllm.v1.request import Request

from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import SchedulerHalf
from tests.benchmarks.scheduler.core import BLOCK_SIZE, Side
from tests.benchmarks.scheduler.crossing import OTHERS, about_to_cross
from tests.benchmarks.scheduler.steady import steady_core

STEPS = BLOCK_SIZE  # in which every request gets one block


@pytest.fixture(autouse=True)
def comparisons_are_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for a request in a list is one for each that is not it."""
    monkeypatch.setattr(Request, "__eq__", lambda self, other: self is other)


def calls(do: Callable[[], Any]) -> int:
    """How many calls of Python functions something takes."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        do()
    finally:
        sys.setprofile(None)
    return count


@functools.cache
def calls_a_request(side: Side, running: int, blocks: int, *, ahead: bool) -> float:
    core = steady_core(side, running, blocks, steps=STEPS, ahead=ahead)

    def steps() -> None:
        for _ in range(STEPS):
            core.step()

    return calls(steps) / STEPS / running


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "in-step"])
@pytest.mark.parametrize("side", ["pin", "rerotate"])
def test_a_steady_step_takes_as_many_calls_a_request_however_many_run(side: Side, ahead: bool) -> None:
    few, many = (calls_a_request(side, running, 4, ahead=ahead) for running in (64, 512))
    stock = calls_a_request("stock", 512, 4, ahead=ahead)
    assert many <= few
    assert many <= 1.1 * stock


@pytest.mark.parametrize("side", ["pin", "rerotate"])
def test_a_steady_step_takes_as_many_calls_however_long_requests_are(side: Side) -> None:
    short, long = (calls_a_request(side, 64, blocks, ahead=True) for blocks in (4, 256))
    assert long == pytest.approx(short, rel=0.01)


def test_a_crossing_takes_no_calls_for_each_block_but_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM calls for a block is left out: to evict it, or to hand out another one."""
    ours: dict[int, int] = {}
    stock = SchedulerHalf.rerotate

    def counted(self: SchedulerHalf, request: Any, to_index: int, moves: Any, ahead: Any) -> None:
        ours[len(moves)] = calls(lambda: stock(self, request, to_index, moves, ahead))

    monkeypatch.setattr(SchedulerHalf, "rerotate", counted)
    for blocks in (16, 512):
        _cross(blocks)
    assert ours[512] == ours[16]


def _cross(blocks: int) -> None:
    core = about_to_cross("rerotate", blocks, copied=True)
    for _ in range(OTHERS):
        core.step()

"""The thread count settles on what was faster and is tried again later."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from posenc_runtime.zoo.pace import CYCLE, TRIALS, Pace


@pytest.fixture(autouse=True)
def threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def settled(pace: Pace, speeds: dict[int, float]) -> int:
    """The threads in use after one whole cycle in which each count has its given speed."""
    for _ in range(CYCLE):
        pace.prepare()
        pace.measured(speeds[pace.threads])
    return pace.threads


def test_the_faster_thread_count_is_kept_and_follows_a_change() -> None:
    pace = Pace(2)
    assert settled(pace, {1: 100.0, 2: 180.0}) == 2
    assert settled(pace, {1: 100.0, 2: 60.0}) == 1


def test_both_counts_are_tried_in_every_cycle() -> None:
    pace = Pace(2)
    tried = []
    for _ in range(2 * TRIALS):
        pace.prepare()
        tried.append(torch.get_num_threads())
        pace.measured(1.0)
    assert tried == [1] * TRIALS + [2] * TRIALS

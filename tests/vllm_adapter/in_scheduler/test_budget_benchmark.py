"""The simulation of budgets: its clock, its crossings, and what the order of crossings is there for."""

from __future__ import annotations

from posenc_runtime.kv.crossing import CrossingQueue
from tests.benchmarks.budget import (
    UNBOUNDED,
    FirstComeFirstServed,
    Load,
    Served,
    Simulation,
    default_budget,
    row,
)

COST = 1 / 64  # a step turns four blocks of 16 in the time of a usual one
ALIKE = Load("alike", slots=4, crosses_at=128, answer=16, requests=8)
ONE_LONG = Load("one long", slots=4, crosses_at=32, answer=16, requests=24, long=1, long_at=1024)


def served(load: Load, budget: int, queue: type[CrossingQueue] = CrossingQueue) -> Served:
    ended: list[None] = []
    found = Simulation(load, budget, COST).run(queue, lambda: ended.append(None))
    assert len(ended) == load.requests
    return found


def test_every_request_crosses_once_and_says_its_answer() -> None:
    found = served(ALIKE, default_budget(COST))
    assert found.tokens == ALIKE.requests * ALIKE.answer
    assert (len(found.waits), found.long_waits) == (ALIKE.requests, [])


def test_time_is_steps_and_what_is_turned_in_them_whatever_the_budget() -> None:
    turned = ALIKE.requests * ALIKE.crosses_at * COST
    for budget in (16, default_budget(COST), UNBOUNDED):
        found = served(ALIKE, budget)
        steps = found.time - turned
        assert steps == round(steps) and found.longest_step < 1 + (budget + 16) * COST
        assert min(found.waits) >= ALIKE.crosses_at * COST


def test_a_larger_budget_has_shorter_waits_and_longer_steps() -> None:
    small, large = served(ALIKE, 16), served(ALIKE, UNBOUNDED)
    assert small.longest_step == 1 + 16 * COST < 1 + ALIKE.crosses_at * COST <= large.longest_step
    assert small.time > large.time
    assert sum(small.waits) > sum(large.waits)


def test_short_crossings_do_not_wait_behind_a_long_one() -> None:
    budget = default_budget(COST)
    assert budget == 64
    first_come = served(ONE_LONG, budget, FirstComeFirstServed)
    half_to_the_shortest = served(ONE_LONG, budget)
    assert len(half_to_the_shortest.waits) == ONE_LONG.requests - 1
    assert max(half_to_the_shortest.waits) < 4 < 16 < max(first_come.waits)
    assert len(half_to_the_shortest.long_waits) == len(first_come.long_waits) == 1
    assert half_to_the_shortest.long_waits[0] <= 2 * first_come.long_waits[0]


def test_a_row_says_tokens_a_usual_step_and_waits() -> None:
    found = Served(time=20.0, tokens=50, longest_step=1.5, waits=[4.0, 1.0, 2.0], long_waits=[7.0])
    assert row(ONE_LONG, "2,048", "order", found) == (
        *("one long", "2,048", "order"),
        *("2.5", "2.0", "4.0", "7.0", "1.50"),
    )

"""How many cached tokens are re-rotated before a step, from what workers measured."""

from __future__ import annotations

from typing import Any

import pytest

from posenc_runtime.kv.budget import MOST_TOKENS, Budget, Speed, given_budget, measured_budget

# Of 8 billion weights in bfloat16, read at 4.5 TB/s.
LARGE = Speed(token_seconds=31e-9, weights_seconds=3.4e-3, weight_bytes=15_300_000_000, block_tokens=16)


def speed(**values: Any) -> Speed:
    return Speed(
        **({"token_seconds": 1e-6, "weights_seconds": 0.02, "weight_bytes": 10**9, "block_tokens": 16} | values)
    )


def test_turning_a_budget_of_tokens_takes_as_long_as_reading_the_weights() -> None:
    budget = measured_budget([LARGE])
    assert budget.tokens == 109_664  # 3.4 ms / 31 ns, in whole blocks
    assert budget.reason == (
        "a step reads 15.3 GB of weights in 3.4 ms; turning one token's keys takes 31 ns, "
        "so turning 109,664 tokens takes at most as long as a step"
    )


def test_a_small_model_has_the_step_of_an_engine_and_not_that_of_its_weights() -> None:
    budget = measured_budget([speed(token_seconds=2e-6, weights_seconds=40e-6, weight_bytes=1_234_000)])
    assert budget.tokens == 496  # 1 ms / 2 us, in whole blocks
    assert budget.reason.startswith("a step reads 1.23 MB of weights in 40 us and takes at least 1 ms; turning")


def test_at_least_a_block_is_turned() -> None:
    budget = measured_budget([speed(token_seconds=0.1, block_tokens=48)])
    assert budget.tokens == 48
    assert budget.reason.endswith(
        "turning one token's keys takes 100 ms, so the budget is the smallest possible, one block of 48 tokens"
    )


def test_a_clock_that_saw_next_to_nothing_does_not_lift_the_bound() -> None:
    assert measured_budget([speed(token_seconds=1e-15)]).tokens == MOST_TOKENS


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_workers_the_one_with_the_fewest_tokens_decides(order: int) -> None:
    slow_turning, slow_reading = speed(token_seconds=4e-6), speed(weights_seconds=0.04)
    budget = measured_budget([slow_turning, slow_reading, speed()][::order])
    assert budget.tokens == 4992
    assert (
        "takes 4 us, so turning 4,992 tokens takes at most as long as a step (the slowest of 3 workers)"
        in budget.reason
    )


def test_nothing_is_measured_by_nobody() -> None:
    with pytest.raises(ValueError, match="at least one worker must have measured"):
        measured_budget([])


@pytest.mark.parametrize("field", ["token_seconds", "weights_seconds", "weight_bytes", "block_tokens"])
def test_what_took_no_time_was_not_measured(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be greater than 0, got 0"):
        speed(**{field: 0})


def test_a_budget_that_was_set_says_so() -> None:
    assert given_budget(640) == Budget(tokens=640, reason="set as scaling.rerotate_budget_tokens")

"""How many cached tokens are re-rotated before a step: as many as take about as long as the step itself.

Every step reads the model's weights once. Turning keys for the same time makes a step at most twice as long while
requests cross. A smaller budget would keep crossing requests waiting; a larger one would delay all others. Decision 18.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

LEAST_STEP_SECONDS = 1e-3  # what an engine needs to plan and to launch a step, however small its model is
MOST_TOKENS = 2**20  # before one step; a bound for a clock that is too coarse and measured almost 0 seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """What a worker measured when its engine started.

    Attributes:
        token_seconds: time to turn the keys of one cached token in all layers, as part of a long crossing.
        weights_seconds: time to read all of the model's weights once.
        weight_bytes: size of these weights.
        block_tokens: tokens of the largest KV block. All tokens of a block are turned together.

    Raises:
        ValueError: when a value is not above 0.
    """

    token_seconds: float
    weights_seconds: float
    weight_bytes: int
    block_tokens: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(
                    f"{name} must be greater than 0, got {value}: the clock of this machine did not advance "
                    "during the measurement; set scaling.rerotate_budget_tokens"
                )

    @property
    def step_seconds(self) -> float:
        """The shortest time that a usual step takes."""
        return max(self.weights_seconds, LEAST_STEP_SECONDS)

    @property
    def num_tokens(self) -> int:
        """How many tokens, in whole blocks, can be turned in the time of a usual step; at least one block."""
        blocks = min(self.step_seconds / self.token_seconds, MOST_TOKENS) // self.block_tokens
        return max(int(blocks), 1) * self.block_tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """The most cached tokens that are re-rotated before a step, and the reason for this number."""

    tokens: int
    reason: str


def given_budget(tokens: int) -> Budget:
    """The budget that the configuration sets."""
    return Budget(tokens=tokens, reason="set as scaling.rerotate_budget_tokens")


def measured_budget(speeds: Sequence[Speed]) -> Budget:
    """The budget of workers that compute a step together: the budget of the slowest worker.

    Raises:
        ValueError: when ``speeds`` is empty.
    """
    if not speeds:
        raise ValueError("at least one worker must have measured how fast it turns keys, got none")
    slowest = min(speeds, key=lambda speed: speed.num_tokens)
    weights = f"reads {_bytes(slowest.weight_bytes)} of weights in {_seconds(slowest.weights_seconds)}"
    if slowest.step_seconds > slowest.weights_seconds:
        step = f"a step {weights} and takes at least {_seconds(slowest.step_seconds)}"
    else:
        step = f"a step {weights}"
    if slowest.num_tokens == slowest.block_tokens:
        so = f"so the budget is the smallest possible, one block of {slowest.block_tokens:,} tokens"
    else:
        so = f"so turning {slowest.num_tokens:,} tokens takes at most as long as a step"
    of_several = f" (the slowest of {len(speeds)} workers)" if len(speeds) > 1 else ""
    turning = f"turning one token's keys takes {_seconds(slowest.token_seconds)}"
    return Budget(tokens=slowest.num_tokens, reason=f"{step}; {turning}, {so}{of_several}")


def smallest_budget(budgets: Sequence[Budget]) -> Budget:
    """The smallest budget of engines that serve side by side, each of which keeps to its own.

    Args:
        budgets: of each engine, at least one.
    """
    smallest = min(budgets, key=lambda budget: budget.tokens)
    if len(budgets) == 1:
        return smallest
    return Budget(
        tokens=smallest.tokens,
        reason=f"{smallest.reason}; of {len(budgets)} engines, this one has the smallest budget, and the largest is "
        f"{max(budget.tokens for budget in budgets):,} tokens",
    )


def _seconds(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _bytes(num_bytes: int) -> str:
    for factor, unit in ((1e9, "GB"), (1e6, "MB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes / 1e3:.3g} kB"

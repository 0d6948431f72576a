"""How sure a measurement is: Wilson intervals of shares, medians of repeated timings with quartiles or ranges."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from posenc_runtime.zoo.passkey import wilson_interval


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value and the interval around it."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """``f"{estimate:.2f}"`` gives ``0.97 (0.94 to 0.99)``."""
        value, low, high = (format(number, spec or ".2f") for number in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"


def wilson(correct: int, samples: int) -> Estimate:
    """The share of correct answers with its 95 % Wilson score interval.

    Unlike the interval from the normal distribution it stays within 0 and 1 and has a width at 0 and at 1, where
    most of our cells are.

    Raises:
        ValueError: when there are no samples, or more correct ones than samples.
    """
    if not 0 <= correct <= samples or samples < 1:
        raise ValueError(f"correct must be between 0 and the number of samples, at least 1; got {correct} of {samples}")
    low, high = wilson_interval(correct, samples)
    return Estimate(correct / samples, low, high)


def median_and_quartiles(values: Sequence[float]) -> Estimate:
    """Median and interquartile range; a single value is all three.

    Raises:
        ValueError: when there are no values.
    """
    if not values:
        raise ValueError("a median needs at least one value, got none")
    if len(values) == 1:
        return Estimate(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Estimate(middle, low, high)


def median_and_range(values: Sequence[float]) -> Estimate:
    """Median, smallest and largest value.

    Raises:
        ValueError: when there are no values.
    """
    if not values:
        raise ValueError("a median needs at least one value, got none")
    return Estimate(statistics.median(values), min(values), max(values))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Median and quartiles of ours over theirs, pair by pair.

    The two sides of a pair are measured one right after the other, so what slows the machine for a while slows both
    and leaves their ratio alone.

    Raises:
        ValueError: when the sides have different lengths, or none.
    """
    return median_and_quartiles([mine / other for mine, other in zip(ours, theirs, strict=True)])

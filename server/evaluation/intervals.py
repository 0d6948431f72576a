"""95 % intervals: Wilson's for shares, Student's for means over independent samples."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence

_Z = statistics.NormalDist().inv_cdf(0.975)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value, the 95 % interval around it, and the number of samples behind it.

    Attributes:
        low, high: not a number where one sample has no interval.
    """

    value: float
    low: float
    high: float
    samples: int

    def __format__(self, spec: str) -> str:
        """``f"{estimate:.2f}"`` gives ``0.97 (0.94 to 0.99)``."""
        spec = spec or ".2f"
        if math.isnan(self.low):
            return f"{self.value:{spec}}"
        return f"{self.value:{spec}} ({self.low:{spec}} to {self.high:{spec}})"

    def plus_minus(self, spec: str) -> str:
        """A mean with half of its interval, ``-3.164 ± 0.021``."""
        return f"{self.value:{spec}}" + ("" if math.isnan(self.half) else f" ± {self.half:{spec.lstrip('+')}}")

    @property
    def half(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2

    def as_json(self) -> dict[str, float | int | None]:
        """What JSON has no number for is null."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        return {name: None if math.isnan(number) else number for name, number in numbers.items()} | {
            "samples": self.samples
        }


def wilson(successes: float, samples: int) -> Estimate:
    """A share with Wilson's score interval: it stays within 0 and 1, and has a width at 0 and at 1.

    Args:
        successes: a sum of marks from 0 to 1. Where some are between, the interval is too wide rather than too narrow,
            because no other marks vary as much as those of right and wrong.

    Raises:
        ValueError: when there are no samples, or more successes than samples.
    """
    if not 0 <= successes <= samples or samples < 1:
        raise ValueError(f"successes must be between 0 and the samples, at least 1; got {successes} of {samples}")
    share = successes / samples
    middle = (share + _Z**2 / (2 * samples)) / (1 + _Z**2 / samples)
    half = _Z / (1 + _Z**2 / samples) * math.sqrt(share * (1 - share) / samples + _Z**2 / (4 * samples**2))
    # Rounding would put an end that is 0 or 1 a little to one side of it.
    low, high = max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))
    return Estimate(share, low, high, samples)


def mean(values: Sequence[float]) -> Estimate:
    """A mean with Student's t interval; values must be of independent samples.

    Raises:
        ValueError: when there are no values.
    """
    if not values:
        raise ValueError("a mean needs at least one value, got none")
    middle = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(middle, math.nan, math.nan, 1)
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(middle, middle - half, middle + half, len(values))


@functools.cache
def t_quantile(degrees: int) -> float:
    """What Student's t stays below with a probability of 97.5 %.

    Args:
        degrees: of freedom, at least 1.
    """
    low, high = 0.0, 16.0
    while _above_zero(high, degrees) < 0.475:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _above_zero(middle, degrees) < 0.475 else (low, middle)
    return (low + high) / 2


def _above_zero(limit: float, degrees: int, steps: int = 2000) -> float:
    """The probability between 0 and a limit, by Simpson's rule over the angle ``atan(t / sqrt(degrees))``."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    width = math.atan(limit / math.sqrt(degrees)) / steps
    weights = (1 if step in (0, steps) else 4 if step % 2 else 2 for step in range(steps + 1))
    total = sum(weight * math.cos(step * width) ** (degrees - 1) for step, weight in enumerate(weights))
    return scale * total * width / 3

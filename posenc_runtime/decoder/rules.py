"""Rules for values of a configuration. The error message of each states the rule and the value that broke it."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any


def require_whole(name: str, value: Any, at_least: int) -> None:
    """The rule that a value is a whole number of at least ``at_least``; true and false are not numbers.

    Raises:
        ValueError: when the value is not a whole number, or is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, got {value!r}")


def require_above(name: str, value: Any, bound: float) -> None:
    """The rule that a value is a finite number above ``bound``.

    Raises:
        ValueError: when the value is not a finite number above the bound.
    """
    if not _is_finite(value) or value <= bound:
        raise ValueError(f"{name} must be a finite number above {bound}, got {value!r}")


def require_at_least(name: str, value: Any, bound: float) -> None:
    """The rule that a value is a finite number of at least ``bound``.

    Raises:
        ValueError: when the value is not a finite number, or below the bound.
    """
    if not _is_finite(value) or value < bound:
        raise ValueError(f"{name} must be a finite number of at least {bound}, got {value!r}")


def require_one_of(name: str, value: Any, choices: Collection[Any]) -> None:
    """The rule that a value is one of ``choices``.

    Raises:
        ValueError: when the value is not one of the choices.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def require_even(name: str, value: int, reason: str) -> None:
    """The rule that a value is even, because of ``reason``.

    Raises:
        ValueError: when the value is odd.
    """
    if value % 2:
        raise ValueError(f"{name} must be even, got {value}: {reason}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

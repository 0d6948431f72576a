"""Checks values from configuration files against the annotations of a dataclass."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal


def check_fields(owner: Any, values: Mapping[str, Any]) -> None:
    """Refuse values of another type than their field's, and numbers that are not finite. Decision 62.

    A whole number is accepted where a number is wanted; true and false are not. The constructor refuses names that
    are no field.

    Args:
        owner: a dataclass whose fields are texts, numbers, truth values, mappings, and sequences and alternatives of
            these.
        values: each value by the name of its field.

    Raises:
        ValueError: when a value does not fit; the message names the field, the rule and the value.
    """
    hints = typing.get_type_hints(owner)
    for field in dataclasses.fields(owner):
        if field.name in values and not fits(values[field.name], hints[field.name]):
            raise ValueError(f"{field.name} must be {rule_of_type(hints[field.name])}, got {values[field.name]!r}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotation's type, and finite where it is a number."""
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in _ALTERNATIVES:
        return any(fits(value, choice) for choice in arguments)
    if kind is Literal:
        return value in arguments
    if kind in (tuple, Sequence):
        return isinstance(value, list | tuple) and all(fits(item, arguments[0]) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
    if kind is int:
        return type(value) is int
    return isinstance(value, kind)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond the largest float
        return False


def rule_of_type(hint: Any) -> str:
    """What a value of an annotation's type must be: the end of a sentence."""
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in _ALTERNATIVES:
        return " or ".join(rule_of_type(choice) for choice in arguments if choice is not types.NoneType)
    if kind in (tuple, Sequence):
        return f"a list, each {rule_of_type(arguments[0])}"
    if kind is Literal:
        return f"one of {', '.join(arguments)}" if len(arguments) > 1 else str(arguments[0])
    return _RULES[kind]


_ALTERNATIVES = (types.UnionType, typing.Union)  # the second is what "float | Literal[...]" makes
_RULES = {str: "a text", float: "a finite number", int: "a whole number", bool: "true or false", Mapping: "a mapping"}

"""Values against the annotations of a dataclass's fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pytest

from posenc_runtime.encodings.fields import check_fields


@dataclasses.dataclass
class Kinds:
    name: ClassVar[str] = "kinds"
    text: str = ""
    number: float = 0.0
    count: int = 0
    flag: bool = False
    choice: Literal["a", "b"] = "a"
    maybe: float | None = None
    several: tuple[float, ...] = ()
    sequence: Sequence[int] = ()
    mapping: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize(
    "values",
    [
        {"text": "x", "number": 1.5, "count": 3, "flag": True, "choice": "b", "maybe": 2.0},
        {"number": 1, "maybe": None, "several": [1, 2.5], "sequence": (1, 2), "mapping": {"x": 1}},
        {"unknown": object(), "name": object()},
    ],
)
def test_what_fits_passes_and_what_is_no_field_is_left_to_the_constructor(values: dict[str, Any]) -> None:
    check_fields(Kinds, values)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("text", 1, "a text, got 1"),
        ("number", "1", "a finite number, got '1'"),
        ("number", float("nan"), "a finite number, got nan"),
        pytest.param("number", 10**400, "a finite number, got 1(0{400})", id="larger than any float"),
        ("number", True, "a finite number, got True"),
        ("count", 1.0, "a whole number, got 1.0"),
        ("count", True, "a whole number, got True"),
        ("flag", 1, "true or false, got 1"),
        ("choice", None, "one of a, b, got None"),
        ("choice", "c", "one of a, b, got 'c'"),
        ("maybe", float("inf"), "a finite number, got inf"),
        ("several", "12", "a list, each a finite number, got '12'"),
        ("several", [1.0, None], r"a list, each a finite number, got \[1.0, None\]"),
        ("sequence", [1.5], r"a list, each a whole number, got \[1.5\]"),
        ("mapping", [], r"a mapping, got \[\]"),
    ],
)
def test_what_does_not_fit_is_refused_by_field_rule_and_value(name: str, value: object, rule: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be {rule}$"):
        check_fields(Kinds, {name: value})

"""Methods of positions at read time. Each file is one method and has its name; no other place lists methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_runtime.encodings.far_pages import ReadTimeMethod
from posenc_runtime.encodings.fields import check_fields
from posenc_runtime.encodings.one_per_file import member, names


def available() -> tuple[str, ...]:
    """The names of the known methods."""
    return names(__path__)


def method(name: str) -> type[ReadTimeMethod]:
    """The dataclass of a method; its fields are the parameters that it takes.

    Raises:
        ValueError: when no method has that name.
    """
    found: type[ReadTimeMethod] = member(__name__, available(), "read_time", name, "METHOD")
    return found


def from_parameters(name: str, parameters: Mapping[str, Any]) -> ReadTimeMethod:
    """Build a method from its parameters.

    Raises:
        ValueError: when the method is unknown, or a value is of the wrong type or out of range.
        TypeError: when the method has no such parameter.
    """
    owner = method(name)
    check_fields(owner, parameters)
    return owner(**parameters)

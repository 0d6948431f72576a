"""Distance biases. Each file is one family and has the name of its ``bias_type``; no other place lists families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_runtime.encodings.distance import DistanceBias
from posenc_runtime.encodings.one_per_file import member, names


def available() -> tuple[str, ...]:
    """The known values of ``bias_type``."""
    return names(__path__)


def family(bias_type: str) -> type[DistanceBias]:
    """The dataclass of a family; its fields are the parameters that it takes.

    Raises:
        ValueError: when no family has that name.
    """
    found: type[DistanceBias] = member(__name__, available(), "bias_type", bias_type, "BIAS")
    return found


def from_parameters(bias_type: str, parameters: Mapping[str, Any]) -> DistanceBias:
    """Build a bias from its family's parameters.

    Raises:
        ValueError: when the family is unknown or a value is out of range.
        TypeError: when the family has no such parameter.
    """
    return family(bias_type)(**parameters)

"""Distance biases. A family is one file, named after its ``bias_type``; nothing else lists it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from posenc_runtime.encodings.distance import DistanceBias


def available() -> tuple[str, ...]:
    """The known values of ``bias_type``."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def family(bias_type: str) -> type[DistanceBias]:
    """The dataclass of a family; its fields are the parameters that it takes.

    Raises:
        ValueError: when no family has that name.
    """
    if bias_type not in available():
        raise ValueError(f"bias_type must be one of {', '.join(available())}, got {bias_type!r}")
    found: type[DistanceBias] = importlib.import_module(f"{__name__}.{bias_type}").BIAS
    return found


def from_parameters(bias_type: str, parameters: Mapping[str, Any]) -> DistanceBias:
    """Build a bias from its family's parameters.

    Raises:
        ValueError: when the family is unknown or a value is out of range.
        TypeError: when the family has no such parameter.
    """
    return family(bias_type)(**parameters)

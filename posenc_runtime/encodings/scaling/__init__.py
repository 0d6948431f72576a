"""Context-extension methods. Each file is one method and has the name of its ``rope_type``; no other place lists it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_runtime.encodings.fields import check_fields
from posenc_runtime.encodings.one_per_file import member, names
from posenc_runtime.encodings.spec import OwnScaling, Scaling


def available() -> tuple[str, ...]:
    """The known values of ``rope_type``."""
    return names(__path__)


def method(rope_type: str) -> type[Scaling]:
    """The dataclass of a method; its fields are the parameters that the method takes.

    Raises:
        ValueError: when no method has that name.
    """
    found: type[Scaling] = member(__name__, available(), "rope_type", rope_type, "SCALING")
    return found


def own_rope_types() -> tuple[str, ...]:
    """The values of ``rope_type`` that a checkpoint may have."""
    return tuple(sorted({needed for rope_type in available() for needed in method(rope_type).own_rope_types}))


def own(rope_type: str) -> type[OwnScaling]:
    """The method that checkpoints of a ``rope_type`` were trained with.

    Raises:
        ValueError: when no method is for checkpoints of that ``rope_type``.
    """
    found: type[OwnScaling] = member(__name__, own_rope_types(), "a checkpoint's rope_type", rope_type, "SCALING")
    return found


def from_parameters(rope_type: str, parameters: Mapping[str, Any]) -> Scaling:
    """Build a method from its parameters under Hugging Face's names.

    Raises:
        ValueError: when the method is unknown, or a value is of the wrong type or out of range.
        TypeError: when the method has no such parameter. To ignore the key would silently rotate by other angles.
    """
    owner = method(rope_type)
    check_fields(owner, parameters)
    return owner(**parameters)

"""A method's own parameters as a strict pydantic model, so that they are checked like every other setting."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from posenc_runtime.encodings.methods import method


def parameters_model(rope_type: str) -> type[BaseModel]:
    """A model with the fields of the method's dataclass, their types and their defaults; it refuses other keys.

    Raises:
        ValueError: when no method has that name.
    """
    parameters: Any = method(rope_type)
    hints = typing.get_type_hints(parameters)
    fields: dict[str, Any] = {
        field.name: (hints[field.name], _default(field)) for field in dataclasses.fields(parameters)
    }
    return create_model(rope_type, __config__=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False), **fields)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return Field(default_factory=field.default_factory)
    return ... if field.default is dataclasses.MISSING else field.default

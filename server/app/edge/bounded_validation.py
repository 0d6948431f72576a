"""Limits how long pydantic works on a body of the wrong shape, and makes it faster on one of the right shape.

Pydantic lists every error. Where an item of a list may be one of thirty things, each wrong item has some hundred
errors, each with a path: a body of 60 kB has taken 17 s and 8 GB. We change the schemas of vLLM's models in two ways.
Which bodies they accept, and what they make of them, stays the same:

- lists and mappings stop at the first item that is wrong;
- of a union of models that have a field with fixed values, only those are tried that know the value that was given.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter
from pydantic_core import SchemaValidator

_STOPPING = frozenset({"list", "tuple", "set", "frozenset", "dict"})
# Parts of a schema that are no schemas.
_OPAQUE = frozenset({"metadata", "serialization", "cls", "config", "default", "expected", "computed_fields"})
_BY_NAME = frozenset({"fields", "choices"})  # parts that have schemas by the names of fields, or by tags
_TAGS = ("type", "role")
_ABSENT, _OTHER = "no tag", "any other"  # where there is no tag, and where no model knows it
_FEW = 3  # choices, below which trying all is as quick


def bound_validation(app: FastAPI) -> None:
    """Change the validators of every route of an application."""
    for adapter in _adapters(app):
        adapter.validator = _Blaming(bounded(adapter.core_schema))  # type: ignore[assignment]


def bounded(schema: Any) -> SchemaValidator:
    """A validator that accepts what a core schema does, and stops at the first error of a list or mapping."""
    return SchemaValidator(_Bounded(schema).schema)


def _adapters(app: FastAPI) -> Iterator[TypeAdapter[Any]]:
    for route in app.routes:
        fields = [getattr(route, "body_field", None), *getattr(getattr(route, "dependant", None), "body_params", ())]
        yield from (field._type_adapter for field in fields if field is not None)
        yield from _captured(getattr(route, "endpoint", None), set())


def _captured(value: Any, seen: set[int]) -> Iterator[TypeAdapter[Any]]:
    """Adapters that a route has made for itself, as ``/invocations`` does, below the functions that decorate it."""
    if isinstance(value, TypeAdapter):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _captured(each, seen)
    elif isinstance(value, types.FunctionType) and id(value) not in seen:
        seen.add(id(value))
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # a cell that is still empty
                yield from _captured(cell.cell_contents, seen)


class _Blaming:
    """A validator whose models' own checks may stumble over a body: that is the body's fault, and no error of ours.

    vLLM's checks run before the types are known to be right.
    """

    def __init__(self, validator: SchemaValidator) -> None:
        self._validator = validator

    def validate_python(self, body: Any, **options: Any) -> Any:
        """As of ``SchemaValidator``.

        Raises:
            ValueError: when a check stumbles; vLLM answers with status 400.
        """
        try:
            return self._validator.validate_python(body, **options)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
            raise ValueError(f"a field of the body has the wrong type: {error}") from error


class _Bounded:
    """A core schema, changed.

    Attributes:
        schema: the changed one.
    """

    def __init__(self, schema: Any) -> None:
        self._done: dict[int, Any] = {}
        self._named = dict(_named(schema))
        self.schema = self._changed(schema)

    def _changed(self, schema: Any) -> Any:
        if isinstance(schema, list | tuple):
            return type(schema)(map(self._changed, schema))
        if not isinstance(schema, dict):
            return schema
        if id(schema) not in self._done:
            new: dict[str, Any] = {}
            self._done[id(schema)] = new
            for key, value in schema.items():
                if key in _BY_NAME and isinstance(value, dict):
                    new[key] = {name: self._changed(each) for name, each in value.items()}
                else:
                    new[key] = value if key in _OPAQUE else self._changed(value)
            if schema.get("type") in _STOPPING:
                new["fail_fast"] = True
            elif schema.get("type") == "union" and "custom_error_type" not in schema:
                self._look_at_tags_first(schema["choices"], new)
        return self._done[id(schema)]

    def _look_at_tags_first(self, choices: list[Any], union: dict[str, Any]) -> None:
        """Make a union one that tries only the models that know the tag, and what is no model with a tag.

        Args:
            choices: as they were.
            union: changed in place.
        """
        for tag in _TAGS:
            tags = [self._tags(choice[0] if isinstance(choice, tuple) else choice, tag) for choice in choices]
            if sum(each is not None for each in tags) >= _FEW:
                break
        else:
            return
        each = list(zip(union["choices"], tags, strict=True))
        known = sorted({value for _, found in each if found for value in found.values})
        groups = {value: [choice for choice, found in each if not found or value in found.values] for value in known}
        groups[_ABSENT] = [choice for choice, found in each if not found or not found.is_required]
        groups[_OTHER] = [choice for choice, found in each if not found]
        rest: dict[str, Any] = {key: union[key] for key in ("mode", "strict", "auto_collapse") if key in union}
        named = {key: union[key] for key in ("ref", "metadata") if key in union}
        union.clear()
        union.update(
            type="tagged-union",
            choices={
                value: {"type": "union", "choices": group, **rest} if group else _wrong_tag(tag, known)
                for value, group in groups.items()
            },
            discriminator=_discriminator(tag, frozenset(known)),
            **named,
        )

    def _tags(self, schema: dict[str, Any], tag: str) -> _Tags | None:
        """What a model asks of its tag; None for what is no model, or has no fixed texts there."""
        while schema["type"] in ("definition-ref", "model"):
            schema = self._named[schema["schema_ref"]] if schema["type"] == "definition-ref" else schema["schema"]
        if schema["type"] not in ("typed-dict", "model-fields") or tag not in schema["fields"]:
            return None
        field = schema["fields"][tag]
        is_required = field.get("required", schema["type"] == "model-fields" or schema.get("total", True))
        inner = field["schema"]
        while inner["type"] == "default":
            inner, is_required = inner["schema"], False
        if "validation_alias" in field or inner["type"] != "literal":
            return None
        if not all(isinstance(value, str) for value in inner["expected"]):
            return None
        return _Tags(frozenset(inner["expected"]), is_required)


@dataclasses.dataclass(frozen=True)
class _Tags:
    """The texts that a model takes as its tag, and whether the tag must be there."""

    values: frozenset[str]
    is_required: bool


def _wrong_tag(tag: str, known: list[str]) -> dict[str, Any]:
    """A schema that says which tags there are; a value with one of these never gets to it."""
    literal = {"type": "literal", "expected": known}
    return {
        "type": "typed-dict",
        "fields": {tag: {"type": "typed-dict-field", "schema": literal, "required": True}},
        "total": True,
    }


def _discriminator(tag: str, known: frozenset[str]) -> Callable[[Any], str]:
    def of(value: Any) -> str:
        if isinstance(value, dict):
            found: Any = value.get(tag, _ABSENT)
        elif isinstance(value, BaseModel):  # made of a part of the body by a validator of vLLM
            found = getattr(value, tag, _ABSENT)
        else:
            return _OTHER
        if isinstance(found, str) and (found in known or found is _ABSENT):
            return found
        return _OTHER

    return of


def _named(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every schema with a name, wherever it is in a schema."""
    seen: set[int] = set()
    stack = [schema]
    while stack:
        each = stack.pop()
        if isinstance(each, list | tuple):
            stack.extend(each)
        elif isinstance(each, dict) and id(each) not in seen:
            seen.add(id(each))
            if isinstance(each.get("ref"), str):
                yield each["ref"], each
            for key, value in each.items():
                if key in _BY_NAME and isinstance(value, dict):
                    stack.extend(value.values())
                elif key not in _OPAQUE:
                    stack.append(value)

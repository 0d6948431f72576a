"""The classes and functions that an architecture is made of, by its sources and without importing a model.

A model's file also has code of other models, and imports files of which it uses one class. So names are followed from
the class of the architecture to what it uses, and from there on.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from posenc_runtime.vllm_adapter.model_code.model_source import (
    MODELS,
    class_in_transformers,
    class_of,
    module_source,
    package_of,
)

# What code says of types, and how vLLM registers a class.
_NOT_USED = ("annotation", "returns", "decorator_list", "type_params")


class Place(NamedTuple):
    """Where a definition is."""

    module: str
    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class Definition:
    """A class, a function or a value at the top of a module.

    Attributes:
        uses: definitions of models that it uses.
        layers: the dotted names of what it uses from elsewhere: vLLM's layers, torch.
    """

    place: Place
    node: ast.stmt
    uses: frozenset[Place]
    layers: frozenset[str]

    @property
    def name(self) -> str:
        return self.place.name


@functools.cache
def definitions(architecture: str) -> tuple[Definition, ...]:
    """What an architecture's class in vLLM uses, and the class itself; nothing where its source cannot be read."""
    found = class_of(architecture)
    return () if found is None else tuple(_reached(Place(*found), MODELS))


@functools.cache
def definitions_in_transformers(architecture: str) -> tuple[Definition, ...]:
    """As ``definitions``, of the class of transformers that vLLM's Transformers backend runs."""
    found = class_in_transformers(architecture)
    return () if found is None else tuple(_reached(Place(*found), ("transformers.models",)))


@functools.cache
def definitions_of_layer(name: str) -> tuple[Definition, ...]:
    """A class of vLLM's layers, and what it uses of the files beside its own.

    Args:
        name: with its module.
    """
    place = Place(*name.rpartition(".")[::2])
    return tuple(_reached(place, (place.module.rpartition(".")[0],)))


def reached_from(definition: Definition, among: tuple[Definition, ...]) -> Iterator[Definition]:
    """A definition, and of those given the ones that it uses, directly or by others."""
    by_place = {each.place: each for each in among}
    pending, seen = [definition], set[Place]()
    while pending:
        each = pending.pop()
        if each.place not in seen:
            seen.add(each.place)
            yield each
            pending += [by_place[place] for place in each.uses if place in by_place]


def _reached(first: Place, packages: tuple[str, ...]) -> Iterator[Definition]:
    pending, seen = [first], set[Place]()
    while pending:
        place = pending.pop()
        if place in seen:
            continue
        seen.add(place)
        if (definition := _definition(place, packages)) is not None:
            yield definition
            pending += definition.uses
        elif (code := _code(place.module)) is not None:  # it is imported there from where it is defined
            pending += [Place(*origin.rpartition(".")[::2]) for origin in code.imported.get(place.name, ())]


@functools.cache
def _definition(place: Place, packages: tuple[str, ...]) -> Definition | None:
    code = _code(place.module)
    if code is None or place.name not in code.nodes:
        return None
    uses, layers = set[Place](), set[str]()
    followed = tuple(f"{package}." for package in packages)
    for written in _names(code.nodes[place.name]):
        first, _, member = written.partition(".")
        if first in code.nodes:
            uses.add(Place(place.module, first))
        for origin in code.imported.get(first, ()):
            if not origin.startswith(followed):
                layers.add(f"{origin}.{member}" if member else origin)
            elif member and _code(origin) is not None:
                uses.add(Place(origin, member))
            else:
                uses.add(Place(*origin.rpartition(".")[::2]))
    return Definition(place, code.nodes[place.name], frozenset(uses), frozenset(layers))


def _names(node: ast.AST) -> Iterator[str]:
    """The names that code uses, with the member where it names one; those of annotations are not used."""
    if isinstance(node, ast.Name):
        yield node.id
        return
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield f"{node.value.id}.{node.attr}"
        return
    for field, value in ast.iter_fields(node):
        if field not in _NOT_USED:
            for each in value if isinstance(value, list) else (value,):
                if isinstance(each, ast.AST):
                    yield from _names(each)


@dataclasses.dataclass(frozen=True)
class _Code:
    """What a module defines, and what its imported names stand for: more than one thing where platforms differ."""

    nodes: Mapping[str, ast.stmt]
    imported: Mapping[str, tuple[str, ...]]


@functools.cache
def _code(module: str) -> _Code | None:
    source = module_source(module)
    if source is None:
        return None
    tree, nodes, imported = ast.parse(source), dict[str, ast.stmt](), dict[str, tuple[str, ...]]()
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                nodes[name] = node
            case ast.Assign(targets=targets):
                nodes |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            origins = {alias.asname or alias.name: alias.name for alias in each.names}
        elif isinstance(each, ast.ImportFrom):
            relative = "." * each.level + (each.module or "")
            origin = importlib.util.resolve_name(relative, package_of(module)) if each.level else relative
            origins = {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in each.names}
        else:
            continue
        for name, origin in origins.items():
            imported[name] = (*imported.get(name, ()), origin)
    return _Code(nodes, imported)

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

from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import (
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


def with_bases(definition: Definition, among: tuple[Definition, ...]) -> list[Definition]:
    """A class, and of those given the classes that it derives from."""
    if not isinstance(definition.node, ast.ClassDef):
        return []
    written = {ast.unparse(base) for base in definition.node.bases}
    bases = [each for each in among if each.place in definition.uses and each.name in written]
    return [definition, *(deeper for base in bases for deeper in with_bases(base, among))]


def without_replaced_defaults(found: tuple[Definition, ...]) -> tuple[Definition, ...]:
    """What an architecture uses, without what is only the default of a parameter that derived classes give.

    Llama 4's classes derive from Llama's, whose layers are a default that Llama 4's replace.

    Args:
        found: the architecture's definitions, that of its class first.
    """
    derived_from = {base.place for each in found for base in with_bases(each, found)[1:]}
    used = {each.place: each.uses - _only_defaults(each) if each.place in derived_from else each.uses for each in found}
    pending, seen = [found[0].place] if found else [], set[Place]()
    while pending:
        place = pending.pop()
        if place not in seen:
            seen.add(place)
            pending += used.get(place, ())
    return tuple(each for each in found if each.place in seen)


def _only_defaults(definition: Definition) -> set[Place]:
    """What a class names nowhere but in defaults of parameters."""
    functions = [node.args for node in ast.walk(definition.node) if isinstance(node, ast.FunctionDef)]
    defaults = [each for of in functions for each in (*of.defaults, *of.kw_defaults) if each is not None]
    in_defaults = [name for each in defaults for name in names_in(each)]
    names = list(names_in(definition.node))
    return {each for each in definition.uses if 0 < in_defaults.count(each.name) == names.count(each.name)}


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
    for written in names_in(code.nodes[place.name]):
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


def names_in(node: ast.AST) -> Iterator[str]:
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
                    yield from names_in(each)


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

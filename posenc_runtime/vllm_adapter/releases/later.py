"""Loads a module so that some of its imports happen only if a name that they bind is used."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pathlib
import sys
import types
from collections.abc import Collection, Iterator
from typing import Any


def load(name: str, path: pathlib.Path, later: Collection[str]) -> types.ModuleType:
    """The module, which is also put among the imported ones; as it is if it was imported before.

    Args:
        name: of the module.
        path: of its source.
        later: modules whose names it imports only when it uses them.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    tree = ast.fix_missing_locations(_Later(name, later).visit(ast.parse(path.read_text(encoding="utf-8"))))
    vars(module)[_BOUND] = Name
    sys.modules[name] = module
    try:
        exec(compile(tree, str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


_BOUND = "_posenc_later"


class Name:
    """Stands for a name of a module, and imports the module when the name is used."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _there(self) -> Any:
        return getattr(importlib.import_module(self._module), self._name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._there()(*given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._there(), name)

    def __getitem__(self, key: Any) -> Any:
        return self._there()[key]

    def __contains__(self, key: Any) -> bool:
        return key in self._there()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._there())

    def __len__(self) -> int:
        return len(self._there())

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, self._there())

    def __or__(self, other: Any) -> Any:
        return Any  # in annotations, which nobody reads


class _Later(ast.NodeTransformer):
    """Replaces imports of modules by names that import them when they are used."""

    def __init__(self, name: str, later: Collection[str]) -> None:
        self._package, self._later = name.rpartition(".")[0], later

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        relative = "." * node.level + (node.module or "")
        module = importlib.util.resolve_name(relative, self._package)
        if module not in self._later:
            return node
        return [
            ast.parse(f"{alias.asname or alias.name} = {_BOUND}({module!r}, {alias.name!r})").body[0]
            for alias in node.names
        ]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node  # what a function imports is imported when it is called

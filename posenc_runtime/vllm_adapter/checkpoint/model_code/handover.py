"""Finds what a model's source in vLLM does with queries and keys between their rotation and attention.

If attention rotates, any code between the two would get states that are not rotated yet.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import ROTARY_NAMES, module_of, sources

_VIEWS = frozenset({"view", "reshape", "contiguous", "flatten", "unflatten"})
# One factor for each token, by which Llama 4 and Mistral scale queries: it commutes with the rotation.
_FACTORS = frozenset({"_get_llama_4_attn_scale"})


@functools.cache
def obstacle(architecture: str) -> str | None:
    """The statement that keeps attention from rotating in place of an architecture's rotary embedding.

    Every file that defines the architecture is checked. At least one file with the architecture's own classes or their
    base classes must rotate; if none does, the rotation was not found and so not checked.

    Returns:
        None if every rotated query and key goes to ``self.attn`` as it is.
    """
    rotates, derived_from = False, {module_of(architecture)}
    for name, source in sources(architecture):
        tree = ast.parse(source)
        if name in derived_from:
            derived_from |= _modules_of_bases(tree, name)
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for statement, following in _rotating(function):
                rotates |= name in derived_from
                if in_the_way := _in_the_way(statement, following):
                    return f"`{in_the_way}` in {name}"
    return None if rotates else "its source has no call of the rotary embedding"


def _modules_of_bases(tree: ast.Module, name: str) -> set[str]:
    """The modules that define the base classes of a file's classes."""
    bases = {ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
    package = name.rpartition(".")[0]
    return {
        f"{package}.{node.module}" if node.level else node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and bases & {alias.name for alias in node.names}
    }


def _rotating(function: ast.FunctionDef) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
    """The statements of a function that rotate, each with the statements that follow it."""
    for index, statement in enumerate(function.body):
        if any(_is_rotation(node) for node in ast.walk(statement)):
            yield statement, function.body[index + 1 :]


def _is_rotation(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ROTARY_NAMES


def _in_the_way(statement: ast.stmt, following: list[ast.stmt]) -> str | None:
    first_line = ast.unparse(statement).splitlines()[0]
    if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)):
        return first_line
    target, arguments = statement.targets[0], statement.value.args
    if not (_is_rotation(statement.value) and isinstance(target, ast.Tuple) and len(arguments) == 3):
        return first_line
    rotated = [ast.unparse(element) for element in target.elts]
    if [ast.unparse(argument) for argument in arguments[1:]] != rotated:
        return first_line
    for after in following:
        calls = [
            node for node in ast.walk(after) if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.attn"
        ]
        if calls:
            handed = [ast.unparse(argument) for argument in calls[0].args[:2]]
            return None if handed == rotated else ast.unparse(after).splitlines()[0]
        if _changes(after, rotated):
            return ast.unparse(after).splitlines()[0]
    return first_line


def _changes(statement: ast.stmt, rotated: list[str]) -> bool:
    """Whether a statement changes the rotated states, other than by a view or a factor for each token."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Assign):
            bound = [ast.unparse(element) for target in node.targets for element in _elements(target)]
            names = [name for name in bound if name.partition("[")[0] in rotated]
            if names and not (_is_view(node.value, names[0]) or _is_factor(node.value, statement)):
                return True
        elif isinstance(node, ast.AugAssign) and ast.unparse(node.target).partition("[")[0] in rotated:
            return True
    return False


def _elements(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple) else [target]


def _is_view(value: ast.expr, name: str) -> bool:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _VIEWS:
        value = value.func.value
    return ast.unparse(value) == name


def _is_factor(value: ast.expr, statement: ast.stmt) -> bool:
    """Whether a value is a product with a result of ``_FACTORS`` that the same statement assigns."""
    named = {
        ast.unparse(node.targets[0])
        for node in ast.walk(statement)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in _FACTORS
    }
    products = [node for node in ast.walk(value) if isinstance(node, ast.BinOp)]
    return len(products) == 1 and isinstance(products[0].op, ast.Mult) and ast.unparse(products[0].right) in named

"""Finds layers that change keys between rotation and cache, for example by a norm: such keys cannot be turned."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from posenc_runtime.vllm_adapter.checkpoint.model_code.definitions import definitions, definitions_in_transformers
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import ROTARY_FUNCTIONS, ROTARY_NAMES, has_own_model


@functools.cache
def change_after_rotation(architecture: str) -> str | None:
    """The statement by which a layer changes every key after its rotation; None if none does.

    A statement under a condition does not count, unless the rotation is under the same: the configuration may switch
    it off.
    """
    found = definitions(architecture) if has_own_model(architecture) else definitions_in_transformers(architecture)
    return next((ast.unparse(change) for each in found for change in _changes(each.node)), None)


def _changes(code: ast.stmt) -> Iterator[ast.stmt]:
    if not isinstance(code, ast.ClassDef):
        return
    weightless = set(_weightless_norms(code))
    for function in code.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        for key, statement in _after_rotation(function.body):
            if (
                isinstance(statement, ast.Assign)
                and key in map(ast.unparse, statement.targets)
                and (not weightless.issuperset(_norms(statement.value)) or _is_argument(key, statement.value))
            ):
                yield statement


def _after_rotation(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """The statements that follow a rotation, each with the name of the rotated key."""
    key = None
    for statement in body:
        if key is not None:
            yield key, statement
            continue
        key = _rotated_key(statement)
        if isinstance(statement, ast.If):
            for branch in (statement.body, statement.orelse):
                yield from _after_rotation(branch)
            rotated = (_rotated_key(each) for each in ast.walk(statement) if isinstance(each, ast.stmt))
            key = next(filter(None, rotated), None)


def _rotated_key(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=[_, key])], value=ast.Call(func=function)):
            name = ast.unparse(function)
            if name in ROTARY_FUNCTIONS or name.rpartition(".")[2] in ROTARY_NAMES:
                return ast.unparse(key)
    return None


def _norms(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if "norm" in name:
                yield name


def _is_argument(key: str, value: ast.expr) -> bool:
    """Whether a value is made of a key by a function: what that one does is not looked at.

    It may be a norm without weights, as ``justnorm`` of Dory. That takes the attention factor out of the keys that
    a model computes, and re-rotation would multiply cached keys by it.
    """
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and any(ast.unparse(argument) == key for argument in node.args)
        for node in ast.walk(value)
    )


def _weightless_norms(code: ast.ClassDef) -> Iterator[str]:
    """Norms over a head without weights: a rotation keeps a head's length, so it does not matter which comes first."""
    for node in ast.walk(code):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call(keywords=keywords)):
                if any(ast.unparse(each) == "has_weight=False" for each in keywords):
                    yield name

"""Which layers rotate of a model that vLLM runs on its Transformers backend, by the model's source in transformers.

Its attention either has a condition of its own, or gets no cosines and sines from the model: ``position_embeddings`` is
None then. The constructor of the attention and the loop over the layers are followed with the configuration and the
number of each layer. What they do not tell counts as a layer that rotates.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from posenc_runtime.vllm_adapter.checkpoint.model_code.conditions import conditions_of
from posenc_runtime.vllm_adapter.checkpoint.model_code.constructors import UNKNOWN, Layer, truth
from posenc_runtime.vllm_adapter.checkpoint.model_code.definitions import (
    Definition,
    definitions_in_transformers,
    names_in,
    with_bases,
)
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import ROTARY_FUNCTIONS

# By this name transformers calls what attends, which vLLM replaces by its own attention.
_ATTENDS = "ALL_ATTENTION_FUNCTIONS"
_COSINES_AND_SINES = "position_embeddings"


def layers_that_rotate(architecture: str, config: Any, num_layers: int) -> list[int]:
    """The numbers of the layers that rotate, or of which the source does not tell.

    Args:
        config: of the checkpoint's text.
    """
    found = definitions_in_transformers(architecture)
    attending = [each for each in found if any(map(_attends, with_bases(each, found)))]
    if not attending:  # the code comes with the checkpoint
        return list(range(num_layers))
    return [
        number for number in range(num_layers) if any(_may_rotate(each, found, config, number) for each in attending)
    ]


def _attends(definition: Definition) -> bool:
    return any(name.partition(".")[0] == _ATTENDS for name in names_in(definition.node))


def _may_rotate(definition: Definition, found: tuple[Definition, ...], config: Any, number: int) -> bool:
    layer = Layer(definition, found, config, number)
    calls = [list(each) for method in layer.methods.values() for each in conditions_of(method, _is_rotation)]
    given = {_COSINES_AND_SINES: None} if _gets_none(found, config, number) else None
    if not calls:
        return True
    return any(all(truth(layer.value(test, given)) in (holds, UNKNOWN) for test, holds in each) for each in calls)


def _is_rotation(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in ROTARY_FUNCTIONS


def _gets_none(found: tuple[Definition, ...], config: Any, number: int) -> bool:
    """Whether a layer gets no cosines and sines, wherever it is called."""
    given = list[Any]()
    for definition in found:
        for function in (node for node in ast.walk(definition.node) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                if _COSINES_AND_SINES in map(ast.unparse, call.args):
                    return False  # to which of its parameters it belongs is not followed
                given += (
                    _value(definition, function, call, each.value, found, config, number)
                    for each in call.keywords
                    if each.arg == _COSINES_AND_SINES and not _is_passed_on(each.value, function)
                )
    return bool(given) and all(each is None for each in given)


def _is_passed_on(value: ast.expr, function: ast.FunctionDef) -> bool:
    """Whether a value is the function's own parameter, which it was given by the loop over the layers."""
    parameters = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
    is_set = any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == _COSINES_AND_SINES
        for node in ast.walk(function)
    )
    return ast.unparse(value) == _COSINES_AND_SINES and _COSINES_AND_SINES in parameters and not is_set


def _value(
    definition: Definition,
    function: ast.FunctionDef,
    call: ast.Call,
    value: ast.expr,
    found: tuple[Definition, ...],
    config: Any,
    number: int,
) -> Any:
    """What a model's loop over its layers gives to one of them."""
    for loop, index in _loops_over_layers(function):
        for place, statement in enumerate(loop.body):
            if call in ast.walk(statement):
                model = Layer(definition, found, config, number)
                return model.value_after(loop.body[:place], value, {index: number})
    return UNKNOWN


def _loops_over_layers(function: ast.FunctionDef) -> Iterator[tuple[ast.For, str]]:
    """Loops over all layers from the first one on, each with the name of the layer's number."""
    for node in ast.walk(function):
        match node:
            case ast.For(
                target=ast.Tuple(elts=[ast.Name(id=index), _]),
                iter=ast.Call(func=ast.Name(id="enumerate"), args=[layers], keywords=[]),
            ) if _is_from_the_first(layers):
                yield node, index


def _is_from_the_first(layers: ast.expr) -> bool:
    match layers:
        case ast.Subscript(value=value, slice=ast.Slice(lower=None, step=None)):
            return ast.unparse(value) == "self.layers"
    return ast.unparse(layers) == "self.layers"

"""How far apart two tokens may be that a layer rotates against each other, by a model's source and its configuration.

Some models rotate only layers with a sliding window or with chunks, and leave those that see the whole request without
positions. Then no rotated distance is longer than the window, however long the request is. Decision 70.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from posenc_runtime.vllm_adapter.model_code.constructors import UNKNOWN, Layer, Made, truth
from posenc_runtime.vllm_adapter.model_code.decoders import caching_layers, rotating_layers
from posenc_runtime.vllm_adapter.model_code.definitions import Definition, definitions, without_replaced_defaults
from posenc_runtime.vllm_adapter.model_code.language_models import language_models
from posenc_runtime.vllm_adapter.model_code.model_source import ROTARY_NAMES, has_own_model

_SLIDING = "sliding_attention"
# What vLLM's models attend by where keys are cached, and its class for models that read prompts both ways.
_ATTENTION = frozenset({"Attention", "ChunkedLocalAttention", "EncoderOnlyAttention"})
_WINDOWS = re.compile("window|chunk")


def tokens_seen_where_rotated(architecture: str, hf_text_config: Any) -> int | None:
    """The most tokens that a query sees in a layer that rotates, its own included.

    Returns:
        None where such a layer sees the whole request, or where the source does not tell.
    """
    if not any(value for key, value in vars(hf_text_config).items() if _WINDOWS.search(key)):
        return None
    most = 0
    for seen in _seen_in_every_layer(architecture, hf_text_config):
        if not isinstance(seen, int) or seen < 1:
            return None
        most = max(most, seen)
    return most or None


def _seen_in_every_layer(architecture: str, config: Any) -> Iterator[Any]:
    """What a query sees in each layer that may rotate: tokens, or another value where it sees all."""
    numbers = range(getattr(config, "num_hidden_layers", 0))
    if not has_own_model(architecture):
        for number in numbers:
            yield _seen_on_the_transformers_backend(config, number)
        return
    for name in (architecture, *language_models(architecture, config)):
        found = without_replaced_defaults(definitions(name))
        if any(map(_changes_a_window, found)):
            yield UNKNOWN
        for definition in set(caching_layers(name)) & set(found):
            for number in numbers:
                layer = Layer(definition, found, config, number)
                if _may_rotate(layer, definition in rotating_layers(name)):
                    yield _window(layer, config)


def _may_rotate(layer: Layer, has_rotation: bool) -> bool:
    """Whether a layer rotates, or its source does not tell."""
    methods = [method for name, method in layer.methods.items() if name != "__init__"]
    calls = [list(each) for method in methods for each in _conditions_of_rotating(method)]
    if not calls:
        return has_rotation
    return any(all(truth(layer.value(test)) in (holds, UNKNOWN) for test, holds in each) for each in calls)


def _conditions_of_rotating(method: ast.AST) -> Iterator[Iterator[tuple[ast.expr, bool]]]:
    """For each call of a rotary embedding: the conditions under which it is reached, and whether each has to hold."""
    parents = {child: node for node in ast.walk(method) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(method):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if name in ROTARY_NAMES:
                yield _conditions(node, parents)


def _conditions(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[tuple[ast.expr, bool]]:
    while (above := parents.get(node)) is not None:
        if isinstance(above, ast.If | ast.IfExp) and node is not above.test:
            otherwise = above.orelse if isinstance(above.orelse, list) else [above.orelse]
            yield above.test, node not in otherwise
        node = above


def _window(layer: Layer, config: Any) -> Any:
    """The tokens that a query sees in a layer; None where it sees all; ``UNKNOWN`` where the source does not tell."""
    made = [each for each in layer.members() if isinstance(each, Made) and each.of <= _ATTENTION]
    if len(made) != 1 or (arguments := made[0].arguments) is None:
        return UNKNOWN
    if "attention_chunk_size" in arguments:
        return arguments["attention_chunk_size"]
    of_layer = arguments.get("per_layer_sliding_window")
    if of_layer is None and "cache_config" in arguments:
        return _window_of_all_layers(config)
    return of_layer


def _changes_a_window(definition: Definition) -> bool:
    """Whether code sets a window in a configuration, or in a layer that is already made."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and _WINDOWS.search(node.attr)
        and ast.unparse(node.value) != "self"
        for node in ast.walk(definition.node)
    )


def _window_of_all_layers(config: Any) -> Any:
    """The window that vLLM gives to layers without one of their own."""
    types = getattr(config, "layer_types", None)
    is_of_all = types is None or all(each == _SLIDING for each in types)
    return getattr(config, "sliding_window", None) if is_of_all else None


def _seen_on_the_transformers_backend(config: Any, number: int) -> Any:
    types = getattr(config, "layer_types", None)
    if types is not None and types[number] == _SLIDING:
        return getattr(config, "sliding_window", None)
    return _window_of_all_layers(config)

"""The largest distance of two tokens in a layer that rotates, by a model's source and its configuration.

Some models rotate only layers with a sliding window or with chunks, and leave those that see the whole request without
positions. Then no rotated distance is longer than the window, however long the request is. Decision 70.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from posenc_runtime.vllm_adapter.checkpoint.model_code.conditions import conditions_of
from posenc_runtime.vllm_adapter.checkpoint.model_code.constructors import UNKNOWN, Layer, Made, truth
from posenc_runtime.vllm_adapter.checkpoint.model_code.decoders import caching_layers, rotating_layers
from posenc_runtime.vllm_adapter.checkpoint.model_code.definitions import (
    Definition,
    definitions,
    without_replaced_defaults,
)
from posenc_runtime.vllm_adapter.checkpoint.model_code.language_models import language_models
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import ROTARY_NAMES, has_own_model
from posenc_runtime.vllm_adapter.checkpoint.model_code.transformers_layers import layers_that_rotate

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


def needs_no_scale(architecture: str, hf_text_config: Any, trained: int | None) -> bool:
    """Whether no rotated distance exceeds a trained length, however long a request is. Decision 70.

    Args:
        trained: tokens; None where nobody says it.
    """
    if trained is None:
        return False
    seen = tokens_seen_where_rotated(architecture, hf_text_config)
    return seen is not None and seen <= trained


def _seen_in_every_layer(architecture: str, config: Any) -> Iterator[Any]:
    """What a query sees in each layer that may rotate: tokens, or another value where it sees all."""
    num_layers = getattr(config, "num_hidden_layers", 0)
    if not has_own_model(architecture):
        for number in layers_that_rotate(architecture, config, num_layers):
            yield _seen_on_the_transformers_backend(config, number)
        return
    for name in (architecture, *language_models(architecture, config)):
        found = without_replaced_defaults(definitions(name))
        if any(map(_changes_a_window, found)):
            yield UNKNOWN
        common = None if any(map(_takes_the_common_window, found)) else _window_of_all_layers(config)
        for definition in set(caching_layers(name)) & set(found):
            for number in range(num_layers):
                layer = Layer(definition, found, config, number)
                if _may_rotate(layer, definition in rotating_layers(name)):
                    yield _window(layer, common)


def _may_rotate(layer: Layer, has_rotation: bool) -> bool:
    """Whether a layer rotates, or its source does not tell."""
    embeddings = [value for name, value in layer.members() if name.removeprefix("self.") in ROTARY_NAMES]
    if embeddings and all(each is None for each in embeddings):  # then a fused kernel has nothing to rotate by, either
        return False
    methods = [method for name, method in layer.methods.items() if name != "__init__"]
    calls = [list(each) for method in methods for each in conditions_of(method, _is_rotation)]
    if not calls:
        return has_rotation
    return any(all(truth(layer.value(test)) in (holds, UNKNOWN) for test, holds in each) for each in calls)


def _is_rotation(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name in ROTARY_NAMES
    return False


def _window(layer: Layer, common: Any) -> Any:
    """The tokens that a query sees in a layer; None where it sees all; ``UNKNOWN`` where the source does not tell.

    Args:
        common: the window that vLLM gives to layers without one of their own; None where they see all.
    """
    made = [(name, each) for name, each in layer.members() if isinstance(each, Made) and each.of <= _ATTENTION]
    if len(made) != 1:
        return UNKNOWN
    [(name, attention)] = made
    if (arguments := attention.arguments) is None or not _calls(layer, name):
        return UNKNOWN
    if "attention_chunk_size" in arguments:
        return arguments["attention_chunk_size"]
    of_layer = arguments.get("per_layer_sliding_window")
    return common if of_layer is None and "cache_config" in arguments else of_layer


def _calls(layer: Layer, name: str) -> bool:
    """Whether a layer attends by a member. One that gives it to kernels of its own may see more than that tells."""
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func) == name
        for method in layer.methods.values()
        for node in ast.walk(method)
    )


def _changes_a_window(definition: Definition) -> bool:
    """Whether code sets a window in a configuration, or in a layer that is already made."""
    taken = {target for target, value in _set_windows(definition) if _is_taken(target, value)}
    return any(target not in taken for target, _ in _set_windows(definition))


def _takes_the_common_window(definition: Definition) -> bool:
    """Whether code takes away the window that vLLM gives to layers without one of their own."""
    return any(_is_taken(target, value) for target, value in _set_windows(definition))


def _is_taken(target: ast.Attribute, value: ast.expr | None) -> bool:
    return ast.unparse(target) == "cache_config.sliding_window" and isinstance(value, ast.Constant) and not value.value


def _set_windows(definition: Definition) -> Iterator[tuple[ast.Attribute, ast.expr | None]]:
    """What code sets that is named like a window, but no member of its own; with the value of a plain assignment."""
    values = {
        target: node.value
        for node in ast.walk(definition.node)
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    for node in ast.walk(definition.node):
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if (
            isinstance(node, ast.Attribute)
            and is_set
            and _WINDOWS.search(node.attr)
            and ast.unparse(node.value) != "self"
        ):
            yield node, values.get(node)


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

"""The classes of the layers that cache keys, by the sources of vLLM: which of them rotate, and by which class."""

from __future__ import annotations

import ast
import functools

from posenc_runtime.vllm_adapter.checkpoint.model_code.definitions import (
    Definition,
    Place,
    definitions,
    definitions_of_layer,
    reached_from,
    with_bases,
)
from posenc_runtime.vllm_adapter.checkpoint.model_code.language_models import (
    language_models,
    leaves_it_to_the_checkpoint,
)
from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import has_own_model

_LAYERS = "vllm.model_executor.layers"
_ROTARY = f"{_LAYERS}.rotary_embedding"
_CACHING = frozenset(
    {
        *("Attention", "MLAAttention", "MultiHeadLatentAttentionWrapper", "ChunkedLocalAttention"),
        *("StaticSinkAttention", "PrefillPrefixLMAttention", "RSWAAttention", "CrossAttention"),
    }
)
# vLLM's rotary classes that models name themselves; `get_rope` chooses among the others.
_NOT_REPLACED = frozenset({"Ernie4_5_VLRotaryEmbedding"})
# What models write into rope_parameters, for M-RoPE by a class of their own: BailingMRotaryEmbedding,
# MRotaryEmbeddingInterleaved.
_OF_AXES = frozenset({"bailing_mrope", "openpangu"})


@functools.cache
def caching_layers(architecture: str) -> tuple[Definition, ...]:
    """The classes whose layers cache keys. A vision tower caches none."""
    found = definitions(architecture)
    return tuple(each for each in found if _caches(each, found))


@functools.cache
def rotating_layers(architecture: str) -> tuple[Definition, ...]:
    """The classes whose layers rotate keys and cache them."""
    found = definitions(architecture)
    return tuple(each for each in caching_layers(architecture) if _rotates(each, found))


@functools.cache
def may_rotate(architecture: str) -> bool:
    """Whether a model may rotate queries and keys; False only if no code of it, or of its text, has a rotary embedding.

    A model may rotate that runs on vLLM's Transformers backend, whose source cannot be read, or whose checkpoint names
    its language model.
    """
    found = definitions(architecture)
    if not has_own_model(architecture) or not found or leaves_it_to_the_checkpoint(architecture):
        return True
    return any(map(_mentions_rotation, found)) or any(map(may_rotate, language_models(architecture)))


@functools.cache
def condition_on_configuration(architecture: str) -> str | None:
    """The condition on a checkpoint's configuration under which layers have a rotary embedding at all."""
    for layer in rotating_layers(architecture):
        for node in ast.walk(layer.node):
            match node:
                case ast.If(test=test, body=body) if "config." in ast.unparse(test):
                    names = {each.id for part in body for each in ast.walk(part) if isinstance(each, ast.Name)}
                    if "get_rope" in names:
                        return ast.unparse(test)
    return None


@functools.cache
def attends_to_an_encoder(architecture: str) -> bool:
    """Whether a decoder's layers attend to what an encoder has made of the prompt."""
    return any(_layer_names(each) & {"CrossAttention"} for each in definitions(architecture))


@functools.cache
def rotary_class_that_is_not_replaced(architecture: str) -> str | None:
    """The rotary class of vLLM that layers with keys name, if posenc has no class in its place."""
    return next(
        (name for each in rotating_layers(architecture) for name in sorted(_layer_names(each) & _NOT_REPLACED)), None
    )


@functools.cache
def rope_type_of_axes(architecture: str) -> str | None:
    """The ``rope_type`` that a model's code gives M-RoPE, if vLLM has a class for it that posenc does not replace."""
    written = {name for each in definitions(architecture) for name in _written(each)}
    return next(iter(sorted(written & _OF_AXES)), None)


def assumes(architecture: str, variable: str) -> bool:
    """Whether a model's code ends unless one of its local variables is true."""
    return any(
        isinstance(test, ast.Name) and test.id == variable
        for each in definitions(architecture)
        for test in _assertions(each)
    )


@functools.cache
def encoder_with_keys(architecture: str) -> str | None:
    """The class of an encoder whose layers cache keys, if a model's code demands it."""
    found = definitions(architecture)
    by_name = {each.name: each for each in found}
    for definition in found:
        for test in _assertions(definition):
            match test:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, ast.Name(id=name)]):
                    encoder = by_name.get(name) if name.endswith("Encoder") else None
                    if encoder and any(_caches(each, found) for each in reached_from(encoder, found)):
                        return name
    return None


@functools.cache
def rotated_states(architecture: str) -> str | None:
    """The class of a recurrent layer that rotates what enters its state; None if there is none."""
    for each in definitions(architecture):
        for name in each.layers:
            if ".mamba." in name and any(map(_names_rotation, definitions_of_layer(name))):
                return name.rpartition(".")[2]
    return None


def reads_configuration(architecture: str, name: str) -> bool:
    """Whether a model's code reads a part of vLLM's configuration."""
    return any(name in _members(each) for each in definitions(architecture))


def derives_from(architecture: str, interface: str) -> bool:
    """Whether an architecture's class has one of vLLM's interfaces of models."""
    place = Place("vllm.model_executor.models.interfaces", interface)
    return any(isinstance(each.node, ast.ClassDef) and place in each.uses for each in definitions(architecture))


@functools.cache
def _assertions(definition: Definition) -> tuple[ast.expr, ...]:
    return tuple(node.test for node in ast.walk(definition.node) if isinstance(node, ast.Assert))


@functools.cache
def _members(definition: Definition) -> frozenset[str]:
    return frozenset(node.attr for node in ast.walk(definition.node) if isinstance(node, ast.Attribute))


@functools.cache
def _written(definition: Definition) -> frozenset[str]:
    constants = (node.value for node in ast.walk(definition.node) if isinstance(node, ast.Constant))
    return frozenset(each for each in constants if isinstance(each, str))


def _caches(definition: Definition, found: tuple[Definition, ...]) -> bool:
    return any(_layer_names(each) & _CACHING for each in with_bases(definition, found))


def _rotates(definition: Definition, found: tuple[Definition, ...]) -> bool:
    return any(map(_names_rotation, reached_from(definition, found)))


def _mentions_rotation(definition: Definition) -> bool:
    """Whether code names a function or a class for rotary embeddings, vLLM's or another."""
    names = {definition.name, *(name.rpartition(".")[2] for name in definition.layers)}
    return _names_rotation(definition) or any("RotaryEmbedding" in name for name in names)


def _names_rotation(definition: Definition) -> bool:
    return any(
        name.startswith(_ROTARY) and name.rpartition(".")[2] in {"get_rope", *_NOT_REPLACED}
        for name in definition.layers
    )


def _layer_names(definition: Definition) -> set[str]:
    return {name.rpartition(".")[2] for name in definition.layers if name.startswith(_LAYERS)}

"""Replaces the rotary classes of vLLM that look up cosines and sines by position with classes of ours, which scale."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

from posenc_runtime.vllm_adapter.in_worker.rotary.embedding import scaling

# Their table has a row for each position, and they read it by position alone.
_SCALED = (
    *("RotaryEmbedding", "Llama3RotaryEmbedding", "YaRNScalingRotaryEmbedding", "LinearScalingRotaryEmbedding"),
    *("DynamicNTKScalingRotaryEmbedding", "DynamicNTKAlphaRotaryEmbedding", "NTKScalingRotaryEmbedding"),
    *("Gemma4RotaryEmbedding", "DeepseekScalingRotaryEmbedding", "MRotaryEmbedding"),
)


@functools.cache
def register() -> None:
    """Replace each rotary class of vLLM that can be scaled by one of ours. The others stay as they are."""
    from posenc_runtime.vllm_adapter.in_worker.rotary import (
        embedding_cache,
        latent_attention,
        long_embedding,
        rows,
        transformers_embedding,
    )

    rows.register()
    for rotary_class, substitute in substitutes().items():
        name = rotary_class.name
        rotary_class.register_oot(substitute, name=rotary_class.__name__)
        substitute.name = name  # so that custom_ops=["+rotary_embedding"] goes on addressing it
    long_embedding.substitute()
    embedding_cache.substitute()
    transformers_embedding.substitute()
    latent_attention.register()


def substitutes() -> dict[Any, Any]:
    """The classes of vLLM that can be scaled, each with the class of ours that models get in its place."""
    return {each: scaling(each) for each in rotary_classes() if each.__name__ in _SCALED}


def rotary_classes() -> Iterator[Any]:
    """Every class of vLLM that may be the rotary embedding of a model."""
    from vllm.model_executor.layers import rotary_embedding
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

    found = {}
    for module_info in pkgutil.iter_modules(rotary_embedding.__path__):
        module = importlib.import_module(f"{rotary_embedding.__name__}.{module_info.name}")
        for _, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, RotaryEmbeddingBase) and member is not RotaryEmbeddingBase:
                found[member.__name__] = member
    yield from found.values()

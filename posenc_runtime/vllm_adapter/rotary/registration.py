"""Replaces each rotary class of vLLM by one of ours, which scales or, with a deployment, refuses to be built."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

from posenc_runtime.vllm_adapter.rotary import building
from posenc_runtime.vllm_adapter.rotary.embedding import scaling

_SUPPORTED = ("RotaryEmbedding", "Llama3RotaryEmbedding")


@functools.cache
def register() -> None:
    """Replace every rotary class of vLLM by one of ours."""
    from posenc_runtime.vllm_adapter.rotary import embedding_cache, long_embedding, rows

    rows.register()
    for rotary_class in rotary_classes():
        substitute = substitute_of(rotary_class)
        name = rotary_class.name
        rotary_class.register_oot(substitute, name=rotary_class.__name__)
        substitute.name = name  # so that custom_ops=["+rotary_embedding"] goes on addressing it
    long_embedding.substitute()
    embedding_cache.substitute()


def substitute_of(rotary_class: Any) -> Any:
    """The class of ours that models get in place of a rotary class of vLLM."""
    return scaling(rotary_class) if rotary_class.__name__ in _SUPPORTED else _refusing(rotary_class)


def _refusing(rotary_class: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if building.checked_deployment() is not None:
            raise ValueError(
                f"posenc scales checkpoints whose rotary class is one of {', '.join(_SUPPORTED)}, got "
                f"{rotary_class.__name__}: serve this checkpoint without additional_config.posenc"
            )
        rotary_class.__init__(self, *args, **kwargs)

    return type("Posenc" + rotary_class.__name__, (rotary_class,), {"__init__": __init__})


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

"""Which language model a multimodal model runs: the one that its source names, or the checkpoint's."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import Any

from posenc_runtime.vllm_adapter.checkpoint.model_code.definitions import Definition, definitions


def language_models(architecture: str, hf_text_config: Any = None) -> tuple[str, ...]:
    """The architectures that may run a model's text, besides its own; none where it has its own layers.

    Args:
        hf_text_config: of the checkpoint, which may name its language model.
    """
    if named := _named(architecture):
        return named
    if hf_text_config is None or not leaves_it_to_the_checkpoint(architecture):
        return ()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    stated = getattr(hf_text_config, "architectures", None)
    of_type = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(getattr(hf_text_config, "model_type", None))
    return tuple(stated or ([of_type] if isinstance(of_type, str) else of_type or ()))


@functools.cache
def leaves_it_to_the_checkpoint(architecture: str) -> bool:
    """Whether the configuration of its text decides which language model a model runs."""
    builds = any(each.name == "init_vllm_registered_model" for each in definitions(architecture))
    return builds and not _named(architecture)


@functools.cache
def _named(architecture: str) -> tuple[str, ...]:
    written = {name for each in definitions(architecture) for name in _written(each)}
    return tuple(sorted(written - {architecture}))  # its own name is for a part of itself


@functools.cache
def _written(definition: Definition) -> tuple[str, ...]:
    return tuple(_architectures(definition.node))


def _architectures(code: ast.AST) -> Iterator[str]:
    """The architectures that a call in some code is given, themselves or by a variable."""
    for node in ast.walk(code):
        match node:
            case ast.keyword(arg="architectures", value=ast.List(elts=elements)):
                yield from _strings(elements)
            case ast.keyword(arg="architectures", value=ast.Name(id=variable)):
                for each in ast.walk(code):
                    match each:
                        case ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=elements)) if name == variable:
                            yield from _strings(elements)


def _strings(elements: list[ast.expr]) -> Iterator[str]:
    for element in elements:
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            yield element.value

"""Reads from a model's source in vLLM how it rotates, because no configuration says it and a guess may be wrong."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from posenc_runtime.vllm_adapter.contract.names import ARCHITECTURES
from posenc_runtime.vllm_adapter.releases import reader

# A model that reads the table itself, or by a fused layer, would rotate every request with unscaled rows. Vision towers
# read their own table, by ``get_cos_sin``.
_READS_TABLE = re.compile(r"\.cos_sin_cache\b|layers\.(hpc\.rope_norm|sparse_attn_indexer)\b")
# Files that read it only in some models, and the key of those models' configurations; None where a condition that a
# scaled embedding does not meet comes first (``embedding.scaling``). The worker sees if that is wrong.
_READS_TABLE_FOR = {
    "vllm.model_executor.models.deepseek_v2": "index_topk",
    "vllm.model_executor.models.qwen3_next": None,
}
# The packages with the code of models, besides a model's own package. What models import from elsewhere are vLLM's
# layers, which leave the rotation to the model.
MODELS = ("vllm.model_executor.models", "vllm.models", "posenc_runtime.vllm_adapter.checkpoint.own_models")
ROTARY_NAMES = frozenset({"rotary_emb", "rotary_pos_emb", "rope"})
# What models of transformers rotate by.
ROTARY_FUNCTIONS = frozenset({"apply_rotary_pos_emb", "apply_rotary_emb"})


def has_own_model(architecture: str) -> bool:
    """Whether vLLM runs an architecture with a model of its own, and not on its Transformers backend."""
    return module_of(architecture) not in (None, "vllm.model_executor.models.transformers")


def module_of(architecture: str) -> str | None:
    """The module that defines an architecture; None where vLLM does not know it."""
    found = class_of(architecture)
    return None if found is None else found[0]


def class_of(architecture: str) -> tuple[str, str] | None:
    """The module and the class of an architecture. A plugin may have registered a class in place of their names."""
    if reader.reads_alone():
        if (where := ARCHITECTURES.get(architecture)) is not None:
            module, _, name = where.partition(":")
            return module, name
        return reader.registered_models().get(architecture)
    from vllm.model_executor.models.registry import ModelRegistry

    registered: Any = ModelRegistry.models.get(architecture)
    if registered is None:
        return None
    if (model_class := getattr(registered, "model_cls", None)) is not None:
        return model_class.__module__, model_class.__name__
    return registered.module_name, getattr(registered, "class_name", architecture)


def class_in_transformers(architecture: str) -> tuple[str, str] | None:
    """The module and the class of an architecture in transformers; None where a checkpoint brings its own code."""
    import transformers

    module = transformers._class_to_module.get(architecture)
    return None if module is None else (f"transformers.{module}", architecture)


def has_latent_attention(architecture: str) -> bool:
    """Whether a model file that defines an architecture has layers of multi-head latent attention."""
    return _has(architecture, r"\b(MultiHeadLatentAttentionWrapper|MLAAttention)\b")


def reads_prompts_both_ways(architecture: str) -> bool:
    """Whether a token of a prompt attends to later tokens, as in a prefix language model."""
    return _has(architecture, r"\bPrefillPrefixLMAttention\b")


def mentions(architecture: str, key: str) -> bool:
    """Whether a configuration's key occurs in a model file that defines an architecture."""
    return _has(architecture, rf"\b{re.escape(key)}\b")


def fixed_rope_type(architecture: str) -> str | None:
    """The ``rope_type`` that an architecture's own file writes out, so that the configuration's is ignored, or None."""
    for node in ast.walk(ast.parse(module_source(module_of(architecture) or "") or "")):
        match node:
            case ast.keyword(arg="rope_parameters", value=ast.Dict(keys=keys, values=values)):
                for pair in zip(keys, values, strict=True):
                    match pair:
                        case ast.Constant(value="rope_type"), ast.Constant(value=str(rope_type)):
                            return rope_type
    return None


def reader_of_the_table(hf_text_config: Any, architecture: str) -> str | None:
    """Name of a model file of an architecture that reads the table of cosines and sines itself; None if none does."""
    for name in _readers(architecture):
        if name not in _READS_TABLE_FOR:
            return name
        key = _READS_TABLE_FOR[name]
        if key is not None and getattr(hf_text_config, key, None) is not None:
            return name
    return None


def key_of_reading(architecture: str) -> str | None:
    """The key of a configuration with which a model file reads the table of cosines and sines itself."""
    return next((key for name in _readers(architecture) if (key := _READS_TABLE_FOR.get(name))), None)


@functools.cache
def _readers(architecture: str) -> tuple[str, ...]:
    return tuple(name for name, source in sources(architecture) if _READS_TABLE.search(source))


def _has(architecture: str, pattern: str) -> bool:
    return any(re.search(pattern, source) for _, source in sources(architecture))


def sources(architecture: str) -> Iterator[tuple[str, str]]:
    """Name and text of the model files that define an architecture: its own, and those that it imports.

    The files are found without importing them, because a model may need a device that this machine does not have.
    """
    module_name = module_of(architecture)
    if module_name is None:
        return
    followed = tuple(f"{package}." for package in (*MODELS, module_name.rpartition(".")[0]) if package)
    pending, seen = [module_name], set[str]()
    while pending:
        name = pending.pop()
        source = None if name in seen else module_source(name)
        seen.add(name)
        if source is not None:
            yield name, source
            pending += (name for name in _imports(name) if name.startswith(followed))


def package_of(module_name: str) -> str:
    """The package from which a module imports relatively."""
    path = _path(module_name)
    is_package = path is not None and path.name == "__init__.py"
    return module_name if is_package else module_name.rpartition(".")[0]


@functools.cache
def module_source(module_name: str) -> str | None:
    """The text of a module; None if there is no such module."""
    path = _path(module_name)
    return None if path is None else path.read_text(encoding="utf-8")


def _path(module_name: str) -> pathlib.Path | None:
    """The file of a module; None if there is no such module."""
    top, *rest = module_name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # __main__, which is a script or an interactive session
        return None
    if spec is None:
        return None
    if not rest:
        found = [pathlib.Path(spec.origin)] if spec.origin else []
    else:
        places = [pathlib.Path(folder).joinpath(*rest) for folder in spec.submodule_search_locations or ()]
        found = [path for place in places for path in (place / "__init__.py", place.with_suffix(".py"))]
    return next((path for path in found if path.exists()), None)


@functools.cache
def _imports(module_name: str) -> tuple[str, ...]:
    """Everything that a module imports, anywhere in it: modules, and names that may be modules or members of one."""
    imported, package = list[str](), package_of(module_name)
    for node in ast.walk(ast.parse(module_source(module_name) or "")):
        if isinstance(node, ast.Import):
            imported += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            module = importlib.util.resolve_name(relative, package) if node.level else relative
            imported += (module, *(f"{module}.{alias.name}" for alias in node.names))
    return tuple(imported)


@functools.cache
def condition_of_rotating(architecture: str) -> str | None:
    """The condition under which some layers of an architecture rotate their keys; None if all layers always do.

    Layers may come from another model's file.
    """
    return next((found for _, source in sources(architecture) if (found := _condition_in(source))), None)


def _condition_in(source: str) -> str | None:
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)):
            continue
        if (node.func.id if isinstance(node.func, ast.Name) else node.func.attr) not in ROTARY_NAMES:
            continue
        above: ast.AST | None = node
        while above is not None:
            if isinstance(above, ast.If | ast.IfExp):
                return ast.unparse(above.test)
            above = parents.get(above)
    return None

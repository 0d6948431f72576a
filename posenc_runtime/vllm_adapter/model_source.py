"""What a model's source in vLLM says about its rotation: nothing else does, and a wrong guess is a wrong answer."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib
import re
from collections.abc import Iterator

# A model file that reads the table itself, or uses a fused layer that does, would take the unscaled rows for
# every request, silently.
_READS_TABLE = re.compile(
    r"\.(cos_sin_cache|get_cos_sin)\b|layers\.(fused_qk_norm_rope|hpc\.rope_norm|sparse_attn_indexer)\b"
)
_IMPORTS_MODEL = re.compile(
    r"^from \.(\w+) import"
    r"|^from (vllm\.model_executor\.models\.\w+|vllm\.models\.[\w.]+|posenc_runtime\.vllm_adapter\.models\.\w+) import",
    re.M,
)
ROTARY_NAMES = frozenset({"rotary_emb", "rotary_pos_emb", "rope"})


def has_own_model(architecture: str) -> bool:
    """Whether vLLM runs an architecture with a model of its own, and not on its Transformers backend."""
    return module_of(architecture) not in (None, "vllm.model_executor.models.transformers")


def module_of(architecture: str) -> str | None:
    """The module that defines an architecture; models that others registered may be there as classes."""
    from vllm.model_executor.models.registry import ModelRegistry

    registered = ModelRegistry.models.get(architecture)
    model_class = getattr(registered, "model_cls", None)
    module: str | None = getattr(registered, "module_name", getattr(model_class, "__module__", None))
    return module


@functools.cache
def reader_of_the_table(architecture: str) -> str | None:
    """Name of the model file, among those that define an architecture, which reads the table itself."""
    return next((name for name, source in sources(architecture) if _READS_TABLE.search(source)), None)


def sources(architecture: str) -> Iterator[tuple[str, str]]:
    """Name and text of the model files that define an architecture: its own, and those that it imports."""
    module_name = module_of(architecture)
    pending: list[str] = [module_name] if module_name else []
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        source = pathlib.Path(spec.origin).read_text(encoding="utf-8")
        yield name, source
        package = name if spec.submodule_search_locations else name.rpartition(".")[0]
        for relative, absolute in _IMPORTS_MODEL.findall(source):
            pending.append(absolute or f"{package}.{relative}")


@functools.cache
def condition_of_rotating(architecture: str) -> str | None:
    """The condition under which the layers of an architecture rotate their keys, None where all of them always do."""
    module_name = module_of(architecture)
    spec = importlib.util.find_spec(module_name) if module_name else None
    if spec is None or spec.origin is None:
        return None
    tree = ast.parse(pathlib.Path(spec.origin).read_text(encoding="utf-8"))
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ROTARY_NAMES):
            continue
        above: ast.AST | None = node
        while above is not None:
            if isinstance(above, ast.If | ast.IfExp):
                return ast.unparse(above.test)
            above = parents.get(above)
    return None

"""Names of vLLM's arguments, and a default, read from its sources: to import vLLM takes seconds."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib
from collections.abc import Iterator, Mapping

_ENGINE = ("engine/arg_utils.py",)
_CACHE = ("config/cache.py",)
# The second file is that of releases with ARGUMENTS_BESIDE_LAUNCHERS. Asking the difference would import vLLM.
_FRONT_END = ("entrypoints/common/cli_args.py", "entrypoints/launchers/cli_args.py")


@functools.cache
def argument_names() -> Mapping[str, frozenset[str]]:
    """Names of the engine's arguments (``engine``) and of the front end's (``server``).

    A few of these names are no arguments of ``vllm serve``; its parser decides. Where vLLM's sources are not found, the
    sets are empty.
    """
    return {"engine": _fields(_ENGINE, "AsyncEngineArgs"), "server": _fields(_FRONT_END, "FrontendArgs")}


@functools.cache
def default_memory_share() -> float:
    """vLLM's own ``gpu_memory_utilization``."""
    for statement in ast.walk(_parsed(_CACHE) or ast.Module([], [])):
        match statement:
            case ast.AnnAssign(target=ast.Name(id="gpu_memory_utilization"), value=ast.Call(keywords=keywords)):
                for keyword in keywords:
                    if keyword.arg == "default":
                        return float(ast.literal_eval(keyword.value))
    from vllm.engine.arg_utils import EngineArgs

    return float(EngineArgs.gpu_memory_utilization)


def _fields(modules: tuple[str, ...], dataclass: str) -> frozenset[str]:
    """Public fields of a dataclass, those of its base classes in the same file included.

    Args:
        modules: files that may have the dataclass; the first one that exists is read.
    """
    parsed = _parsed(modules)
    if parsed is None:
        return frozenset()
    classes = {node.name: node for node in parsed.body if isinstance(node, ast.ClassDef)}
    return frozenset(_annotated(dataclass, classes))


def _parsed(modules: tuple[str, ...]) -> ast.Module | None:
    package = importlib.util.find_spec("vllm")
    folders = (package and package.submodule_search_locations) or ()
    places = (pathlib.Path(folder, module) for module in modules for folder in folders)
    source = next((place for place in places if place.is_file()), None)
    return None if source is None else ast.parse(source.read_text(encoding="utf-8"))


def _annotated(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    if name not in classes:
        return
    for base in classes[name].bases:
        if isinstance(base, ast.Name):
            yield from _annotated(base.id, classes)
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            yield node.target.id

"""Looks in vLLM for the names that we use."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator

from posenc_runtime.vllm_adapter.releases.names import Names


def missing(names: Names, attributes: Names) -> Iterator[str]:
    """What vLLM lacks, one text for each name: its module, its path and its missing parameters.

    Args:
        names: what modules must have, with the parameters that it must take.
        attributes: classes, with attributes that their ``__init__`` must set; looked for in its source.
    """
    for module_name, path, parameters in names:
        try:
            found = functools.reduce(getattr, path.split("."), importlib.import_module(module_name))
        except (ImportError, AttributeError) as error:
            yield f"{module_name}.{path}{_reason(error)}"
            continue
        if parameters and callable(found):
            signature = inspect.signature(found).parameters
            if absent := [name for name in parameters if name not in signature]:
                yield f"{module_name}.{path}({', '.join(absent)})"
    for module_name, class_name, parameters in attributes:
        try:
            made = inspect.getsource(getattr(importlib.import_module(module_name), class_name).__init__)
        except (ImportError, AttributeError) as error:
            yield f"{module_name}.{class_name}{_reason(error)}"
            continue
        for name in parameters:
            if f"self.{name}" not in made:
                yield f"{module_name}.{class_name}().{name}"


def _reason(error: Exception) -> str:
    """Names the package without which a module of vLLM cannot be imported; empty where the reason is vLLM itself."""
    lacking = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    return f", which needs {lacking}" if lacking and lacking.partition(".")[0] != "vllm" else ""

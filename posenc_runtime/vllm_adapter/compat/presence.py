"""Looking in vLLM for the names that we touch."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator

from posenc_runtime.vllm_adapter.compat.names import Names


def missing(names: Names, attributes: Names) -> Iterator[str]:
    """What vLLM lacks, each as its module, its path and the parameters that are not there.

    Args:
        names: of modules, with their parameters.
        attributes: that objects get when they are made: looked for in the text of ``__init__``.
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
    """Why a module of vLLM cannot be imported, where the reason is not vLLM."""
    lacking = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    return f", which needs {lacking}" if lacking and lacking.partition(".")[0] != "vllm" else ""

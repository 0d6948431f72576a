"""Every name that our own sources import from vLLM, inside of functions as well."""

from __future__ import annotations

import ast
import importlib
import pathlib
from collections.abc import Iterator

_ADAPTER = pathlib.Path(__file__).resolve().parent.parent


def imported_names() -> set[tuple[str, str]]:
    """Module and name of each import. Imports in ``releases`` are left out: it knows which release has which name."""
    found = set()
    for source in sorted(_ADAPTER.rglob("*.py")):
        if _ADAPTER / "releases" in source.parents:
            continue
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm" and not node.level:
                found |= {(node.module or "", alias.name) for alias in node.names}
    return found


def missing() -> Iterator[str]:
    """The imported names that this vLLM does not have."""
    for module, name in sorted(imported_names()):
        try:
            if not hasattr(importlib.import_module(module), name):
                importlib.import_module(f"{module}.{name}")
        except ImportError:
            yield f"{module}.{name}"

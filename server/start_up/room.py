"""Refuses, before an engine starts, a KV cache without room for a request, and a CPU without free memory."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from posenc_runtime.vllm_adapter.checkpoint.sizing import cpu_memory
from posenc_runtime.vllm_adapter.checkpoint.sizing.cache import layer_caches, used_share
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import FIT_INTO_MEMORY
from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from server.deployment.gpus import GIB
from server.deployment.settings import Settings

if TYPE_CHECKING:
    from posenc_runtime.vllm_adapter.checkpoint.sizing.cache import LayerCache
    from posenc_runtime.vllm_adapter.settings.plan import Plan

_BLOCK_TOKENS = 16  # vLLM's default; that of some devices is larger
# Arguments with which the cache of a request is divided, or its size does not come from its bytes.
_NOT_COUNTED = ("decode_context_parallel_size", "prefill_context_parallel_size", "pipeline_parallel_size")
_FLOAT32 = ("float32", "float")


def refuse_small_cache(settings: Settings, plan: Plan) -> None:
    """Check that a KV cache of a given size has room for one request of the longest length.

    What a request takes is counted from the model's configuration. The engine may need more: it measures.

    Raises:
        SettingRefused: with the bytes that are needed, and the longest request that there is room for.
    """
    given, length = settings.engine.get("kv_cache_memory_bytes"), plan.max_model_len
    if type(given) is not int or length == FIT_INTO_MEMORY:
        return
    caches = _caches(settings.engine, plan)
    if not caches:
        return
    block = settings.engine.get("block_size")
    block = block if type(block) is int and block > 0 else _BLOCK_TOKENS
    needed = _bytes(caches, length, block)
    if needed <= given:
        return
    # vLLM keeps a block that no request gets.
    enough = needed + _bytes(caches, block, block)
    longest = _longest(caches, length, block, given - _bytes(caches, block, block))
    shorter = f", or max_model_len to {longest} or less" if longest else ""
    raise SettingRefused(
        f"engine.kv_cache_memory_bytes: must have room for one request of max_model_len {length} tokens, which takes "
        f"{needed} bytes ({_size(needed)}), got {given} ({_size(given)}): set it to {enough} or more{shorter}"
    )


def refuse_full_memory(settings: Settings) -> None:
    """Check that a CPU has the free memory that vLLM takes where the KV cache has no size of its own.

    Raises:
        SettingRefused: with what is free, what is asked, and what to set.
    """
    if settings.engine.get("kv_cache_memory_bytes") is not None or os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
        return
    share = settings.engine.get("gpu_memory_utilization")
    if share is not None and (type(share) not in (int, float) or not 0 < share <= 1):
        return  # vLLM says what it must be
    share = used_share(settings.engine)
    nodes = cpu_memory.of_nodes() if cpu_memory.is_cpu() else []
    if not nodes or any(math.ceil(total * share) <= free for total, free in nodes):
        return
    total, free = max(nodes, key=lambda node: node[1] / node[0])
    lower = math.floor(free / total * 20) / 20  # what is free changes while the engine starts
    setting = f"set it to {lower:g} or less, or " if lower > 0 else "stop other programs on this machine, or "
    raise SettingRefused(
        f"engine.gpu_memory_utilization: on a CPU, this share of the machine's memory must be free, got {share:g}, "
        f"which is {_size(math.ceil(total * share))}, but only {_size(free)} of {_size(total)} are free: {setting}give "
        "the KV cache a size instead (engine.kv_cache_memory_bytes)"
    )


def _caches(engine: dict[str, Any], plan: Plan) -> list[LayerCache]:
    """What the layers keep, no more than the engine counts; none where that is not known here."""
    checkpoint = plan.checkpoint
    if checkpoint is None or checkpoint.text_config is None or engine.get("num_gpu_blocks_override") is not None:
        return []
    if any(engine.get(name) not in (None, 1) for name in _NOT_COUNTED):
        return []
    kv_cache_dtype = str(engine.get("kv_cache_dtype", "auto"))
    if kv_cache_dtype == "auto" and getattr(checkpoint.text_config, "quantization_config", None) is not None:
        return []  # it may say how keys are stored
    try:
        return layer_caches(
            checkpoint.text_config,
            checkpoint.architecture.partition(", ")[0],
            model_bytes=4 if engine.get("dtype") in _FLOAT32 else 2,
            kv_cache_dtype=kv_cache_dtype,
            tensor_parallel_size=engine.get("tensor_parallel_size", 1),
        )
    except Unsupported:
        return []


def _bytes(caches: list[LayerCache], tokens: int, block: int) -> int:
    """What a request takes, in whole blocks."""
    return sum(each.request_bytes(math.ceil(tokens / block) * block) for each in caches)


def _longest(caches: list[LayerCache], length: int, block: int, room: int) -> int:
    """The longest request, tokens in whole blocks, that there is room for; 0 for none."""
    fits, does_not = 0, math.ceil(length / block)
    while does_not - fits > 1:
        middle = (fits + does_not) // 2
        if _bytes(caches, middle * block, block) <= room:
            fits = middle
        else:
            does_not = middle
    return fits * block


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.1f} MiB"

"""The memory of the KV cache, before an engine starts: refused where it cannot hold a request or is not free, and taken
from what is free on a CPU where nobody said how much."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from posenc_runtime.vllm_adapter.checkpoint.hub import is_in_object_store
from posenc_runtime.vllm_adapter.checkpoint.sizing import cpu_memory
from posenc_runtime.vllm_adapter.checkpoint.sizing.cache import layer_caches, number_bytes, used_share
from posenc_runtime.vllm_adapter.checkpoint.sizing.weights import weights_of
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
_SIZES_ANOTHER_WAY = ("gpu_memory_utilization", "num_gpu_blocks_override")
_WORKERS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
# What a worker takes beside weights and cache, with its share of the other processes: programs and activations.
_PROGRAM_BYTES = 5 * GIB // 2
_MOST_TOKENS = 10**9


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
    block = _block_tokens(settings.engine)
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
    """Check that a CPU has the free memory that vLLM takes where ``take_free_memory`` gives the KV cache no size.

    Raises:
        SettingRefused: with what is free, what is asked, and what to set.
    """
    share = settings.engine.get("gpu_memory_utilization")
    if _has_size(settings) or _takes_free_memory(settings):
        return
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


def take_free_memory(settings: Settings, plan: Plan, place: str) -> str | None:
    """On a CPU where no setting says how large the KV cache is, give it memory that is free.

    It gets half of what the weights and the programs leave, or what the longest request takes, if that is more.

    Sets ``engine.kv_cache_memory_bytes``, for each of several workers.

    Args:
        place: the folder of the checkpoint, or its name.

    Returns:
        A line for the user; None where the settings say it, or free memory is not known.

    Raises:
        SettingRefused: when the weights or the longest request do not fit, with what is free and what to set.
    """
    engine = settings.engine
    nodes = cpu_memory.of_nodes() if _takes_free_memory(settings) and cpu_memory.is_cpu() else []
    if not nodes:
        return None
    free = min(available for _, available in nodes)
    workers = math.prod(_number(engine, name) for name in _WORKERS)
    of_node = math.ceil(workers / len(nodes))
    weights = _weights(engine, plan, place)
    left = free // of_node - weights // _number(engine, "tensor_parallel_size") - _PROGRAM_BYTES
    if left <= 0:
        raise SettingRefused(
            f"model: weights of {_size(weights)}, and {_size(_PROGRAM_BYTES)} of programs, must fit into the memory "
            f"that is free, got {_size(free)}: stop other programs on this machine, or serve a smaller model"
        )
    caches, block = _caches(engine, plan), _block_tokens(engine)
    taken = left // 2
    if caches and plan.max_model_len != FIT_INTO_MEMORY:
        needed = _bytes(caches, plan.max_model_len, block) + _bytes(caches, block, block)
        if needed > left:
            longest = _longest(caches, plan.max_model_len, block, left - _bytes(caches, block, block))
            raise SettingRefused(
                f"max_model_len: the KV cache must have room for one request of this length, got {plan.max_model_len} "
                f"tokens, which take {_size(needed)}, but beside the weights only {_size(left)} are free: set "
                f"max_model_len to {longest} or less, or stop other programs on this machine"
            )
        taken = max(taken, needed)
    engine["kv_cache_memory_bytes"] = taken
    tokens = f", for {_longest(caches, _MOST_TOKENS, block, taken):,} tokens" if caches else ""
    each = " in each worker" if workers > 1 else ""
    return (
        f"KV cache: {_size(taken)}{each} of the {_size(free)} of memory that are free{tokens}; "
        "--set engine.kv_cache_memory_bytes=BYTES takes another size"
    )


def _has_size(settings: Settings) -> bool:
    """Whether the KV cache has a size of its own."""
    return settings.engine.get("kv_cache_memory_bytes") is not None or bool(os.environ.get("VLLM_CPU_KVCACHE_SPACE"))


def _takes_free_memory(settings: Settings) -> bool:
    """Whether no setting says how large the KV cache is, and what else takes memory can be counted."""
    engine = settings.engine
    if _has_size(settings) or any(engine.get(name) is not None for name in _SIZES_ANOTHER_WAY):
        return False
    return not is_in_object_store(engine.get("hf_config_path", settings.model))


def _number(engine: dict[str, Any], name: str) -> int:
    given = engine.get(name)
    return given if type(given) is int and given > 0 else 1


def _block_tokens(engine: dict[str, Any]) -> int:
    block = engine.get("block_size")
    return block if type(block) is int and block > 0 else _BLOCK_TOKENS


def _weights(engine: dict[str, Any], plan: Plan, place: str) -> int:
    """Bytes of the weights; 0 where they are not known."""
    checkpoint = plan.checkpoint
    if checkpoint is None or checkpoint.text_config is None:
        return 0
    return weights_of(place, checkpoint.text_config, number_bytes(engine)).num_bytes or 0


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
            model_bytes=number_bytes(engine),
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

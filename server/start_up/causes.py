"""Finds in the output of an engine's processes why the engine did not start, for causes that a user can remove."""

from __future__ import annotations

import re

_MORE_MEMORY = (
    "give the KV cache more memory (engine.gpu_memory_utilization or engine.kv_cache_memory_bytes), store it in fewer "
    "bits (engine.kv_cache_dtype), or split the model over more devices (engine.tensor_parallel_size)"
)

_TOO_LONG = (
    r"max seq len \((\d+)\), \(?([\d.]+) GiB KV cache is needed, which is larger than the available KV cache "
    r"memory \(([\d.]+) GiB\)"
)

# A pattern in the output, and what we say; {1} is the text of the pattern's first group.
_CAUSES = (
    (
        _TOO_LONG + r"\. Based on the available memory, the estimated maximum model length is (\d+)",
        "max_model_len: the KV cache must have room for one request of this length, got {1} tokens, which need {2} "
        "GiB, but the cache has {3} GiB: set max_model_len to {4}, or " + _MORE_MEMORY,
    ),
    (
        _TOO_LONG,
        "max_model_len: the KV cache must have room for one request of this length, got {1} tokens, which need {2} "
        "GiB, but the cache has {3} GiB: lower max_model_len, or " + _MORE_MEMORY,
    ),
    (
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len",
        "engine.gpu_memory_utilization: the weights must leave memory for the KV cache, got none left: " + _MORE_MEMORY,
    ),
    (
        r"Free memory on device (\S+) \(([\d.]+)/([\d.]+) GiB\) on startup is less than desired GPU memory utilization "
        r"\(([\d.]+), ([\d.]+) GiB\)",
        "engine.gpu_memory_utilization: this share of the device's memory must be free, got {4}, which is {5} GiB, but "
        "only {2} of {3} GiB are free: stop other programs that use {1}, or lower the setting",
    ),
    (
        r"Available memory on node \S+ \(([\d.]+)/([\d.]+) GiB\) on startup is less than desired CPU memory "
        r"utilization \(([\d.]+), ([\d.]+) GiB\)",
        "engine.gpu_memory_utilization: on a CPU, this share of the machine's memory must be free, got {3}, which is "
        "{4} GiB, but only {1} of {2} GiB are free: lower the setting, give the KV cache a size instead "
        "(engine.kv_cache_memory_bytes), or stop other programs on this machine",
    ),
    (
        r"Available memory on node \S+ \(([\d.]+)/([\d.]+) GiB\) on kv cache allocation is less than requested memory "
        r"for kv \(([\d./]+) GiB\)",
        "engine.kv_cache_memory_bytes: this much memory must be free, got {3} GiB, but only {1} of {2} GiB are free: "
        "lower the setting, or stop other programs on this machine",
    ),
    (
        r"torch\.(?:cuda\.)?OutOfMemoryError: ([^\n]{0,300})",
        "the device has too little memory for the model: {1}. Lower engine.max_num_batched_tokens or "
        "engine.max_num_seqs, quantise the weights, or split the model over more devices (engine.tensor_parallel_size)",
    ),
    (
        r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (\d+) bytes",
        "this machine has too little memory for the model: an allocation of {1} bytes failed. Lower "
        "engine.kv_cache_memory_bytes or engine.max_num_batched_tokens, or quantise the weights",
    ),
    (
        r"No space left on device(?:: '([^'\n]+)')?",
        "a disk is full: there was no space for {1}. Free some, or set HF_HOME, VLLM_CACHE_ROOT and TMPDIR to folders "
        "on a disk with space; if the full disk is /dev/shm, give the container more (--shm-size)",
    ),
    (
        r"SafetensorError: ([^\n]+)",
        "model: a file of the weights is damaged: {1}. Delete it, and download it again",
    ),
    (
        r"Cannot find any model weights with `([^`\n]+)`",
        "model: must have files of weights, got {1}, which has none that engine.load_format reads: download the whole "
        "checkpoint, or name the folder that has it",
    ),
    (
        r"Following weights were not initialized from checkpoint: \{([^}\n]{1,200})",
        "model: the checkpoint lacks weights that its configuration asks for, {1}: download it again, or mend its "
        "config.json",
    ),
    (
        r"weight_loader[\s\S]{0,1500}?(start \(\d+\) \+ length \(\d+\) exceeds dimension size \(\d+\)|"
        r"Attempted to load weight \([^\n\r]+)",
        "model: a tensor of the weights has another shape than config.json says ({1}): download the checkpoint again, "
        "or take the config.json that belongs to it",
    ),
    (
        r"There is no module or parameter named '?([\w.]+)'? in (\w+)",
        "model: the checkpoint has weights {1}, but the model {2} has none of this name: its config.json may be that "
        "of another model",
    ),
)

# The last line of a traceback, as vLLM logs it, with a carriage return before the end, or as Python prints it.
_ERROR = re.compile(
    r"^(?:\([\w-]+ pid=\d+\) ERROR [^\]]*\] )?((?:\w+\.)*\w*(?:Error|Exception|Unsupported|Refused)): (.+?)\r?$",
    re.MULTILINE,
)
_OF_OTHERS = (
    *("Engine core initialization failed", "WorkerProc initialization failed"),
    "EngineCore encountered an issue",
    "cancelled",  # what was asked of a worker that has ended
)
_SIGNAL = re.compile(r"Worker proc \S+ died unexpectedly \(exit code: -(\d+)\)")


def cause(said: str) -> str | None:
    """One paragraph with the rule, the values and what to do; None where the cause is unknown.

    Args:
        said: what the engine's processes wrote.
    """
    for theirs, ours in _CAUSES:
        if found := re.search(theirs, said):
            return ours.format(found[0], *(group or "a file" for group in found.groups()))
    return None


def first_error(said: str) -> str | None:
    """The first error that a process of an engine ended with, or the signal that ended a worker, in one line.

    None where neither was written.

    Args:
        said: as in ``cause``.
    """
    for kind, message in _ERROR.findall(said):
        if not message.startswith(_OF_OTHERS):
            is_ours = kind.startswith("posenc_runtime.")
            return str(message if is_ours else f"{kind.rpartition('.')[2]}: {message}")
    if ended := _SIGNAL.search(said):
        return (
            f"a worker was ended by signal {ended[1]}: the kernel sends 9 if memory runs out, and its log says so; 4 "
            "and 11 are faults of native code"
        )
    return None

"""The device that engine tests run on, and all that differs on it: CUDA where there is a GPU, the CPU elsewhere.

On CUDA, float32 means vLLM's Triton attention: FlashAttention and FlashInfer take 16 bits only. Triton would round the
factors of float32 products to TF32's 10 bits, which no tolerance of ours allows, and is told not to; torch, and with it
cuBLAS, does not unless asked.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch

ON_CUDA = torch.cuda.is_available()  # the CPU build of vLLM comes with a torch that knows no GPU

if ON_CUDA:
    # What asks vLLM for its platform imports its CUDA libraries, which warn about things that are not ours. It is done
    # once here, so that our tests can be strict.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.platforms import current_platform

        current_platform.is_cuda()

# Engine arguments that tests do not set themselves. Two engines, or pytest's own tensors, have room beside one. Engines
# of tests that run side by side (``pytest -n``) do not measure the memory that is free: others take it meanwhile.
_ALONE = {"gpu_memory_utilization": 0.3}
_SIDE_BY_SIDE = {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 2**28}
ENGINE: dict[str, Any] = (_SIDE_BY_SIDE if "PYTEST_XDIST_WORKER" in os.environ else _ALONE) if ON_CUDA else {}


def environment(workers: int = 1) -> dict[str, str]:
    """What an engine's process is told.

    On the CPU, each worker gets one core, and those of tests that run side by side (``pytest -n``) begin at another
    each. An engine in one process with its worker is not bound to it by vLLM, and told to compute in one thread: sums
    are taken in the same order, and no second thread waits in a loop on the core of another engine.
    """
    if ON_CUDA:
        return {"TRITON_F32_DEFAULT": "ieee"}
    cores = sorted(os.sched_getaffinity(0))
    first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = (cores[(first + worker) % len(cores)] for worker in range(workers))
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, own)), "OMP_NUM_THREADS": "1"}


def most_workers(wanted: int) -> int:
    """How many of the workers that a test wants can run side by side."""
    return min(wanted, torch.cuda.device_count()) if ON_CUDA else wanted


def needs_workers(number: int) -> pytest.MarkDecorator:
    """Skip a test where so many workers cannot run side by side."""
    return pytest.mark.skipif(
        most_workers(number) < number,
        reason=f"needs {number} GPUs, one for each worker, and torch finds {torch.cuda.device_count()}",
    )


def on_the_cpu(why: str) -> pytest.MarkDecorator:
    """Skip a test on CUDA, with the reason."""
    return pytest.mark.skipif(ON_CUDA, reason=f"on the CPU only: {why}")

"""An engine as it runs on a GPU, as far as a CPU can: vLLM's second model runner, over Triton's kernels, interpreted.

Model runner, attention, metadata and how they are called are vLLM's for CUDA, and so are its kernels; ours are the
Triton ones, not their references. What is missing of a GPU is its compiler, its graphs and what FlashAttention
computes. To be run in a process of ``forked_for_triton``: vLLM looks for Triton when it is imported.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import sys
from typing import Any

# Each a module of ``posenc_runtime.kernels`` that has the kernel by its own name.
OPERATIONS = (
    *("rotary.rope_rows", "rotary.rerotate", "rotary.rotary_store"),
    *("attention.bias_attention", "attention.cope_attention", "attention.read_time_attention"),
)


class CpuDriver:
    """All that vLLM asks of the driver of a Triton that compiles for CPUs."""

    @staticmethod
    def is_active() -> bool:
        return True


def interpret_triton() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.backends import Backend, backends

    backends["cpu"] = Backend(compiler=None, driver=CpuDriver)  # type: ignore[arg-type]


def install(arguments: dict[str, Any]) -> None:
    """Put what an engine with these arguments gets on CUDA in the place of what it gets on the CPU."""
    import torch
    from vllm.model_executor.layers.attention import Attention
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from posenc_runtime import vllm_adapter
    from posenc_runtime.kernels import ops
    from posenc_runtime.kernels.attention import key_norms
    from posenc_runtime.vllm_adapter.in_worker import cpu_key_order, speed
    from posenc_runtime.vllm_adapter.in_worker.activation import activate
    from posenc_runtime.vllm_adapter.refusals import cpu_attention, moving_requests, turning_backends, turning_queries
    from posenc_runtime.vllm_adapter.refusals import rotating_attention as fused_rotary
    from posenc_runtime.vllm_adapter.settings.arguments import engine_args
    from tests.engine import flash_attention_in_torch
    from tests.kernels import interpreted_assembly, interpreted_calls

    flash_attention_in_torch.install()
    interpreted_assembly.mend()
    interpreted_calls.mend()
    vllm_adapter.register()
    activate()  # before what it registers for CPUs is replaced
    backend = AttentionBackendEnum[arguments.get("attention_backend", "TRITON_ATTN")]
    register_backend(AttentionBackendEnum.CPU_ATTN, backend.get_path())
    for module in OPERATIONS:
        name = module.rpartition(".")[2]
        setattr(ops, name, getattr(importlib.import_module(f"posenc_runtime.kernels.{module}"), name))
    ops.record_key_norms = key_norms.record_key_norms
    # Keys lie as CUDA's backends cache them, whatever the processor.
    Attention.isa = ""
    cpu_key_order.cpu_key_order = lambda *_: None  # type: ignore[assignment, return-value]
    speed._TURNED_BYTES = {"cpu": 2**19}  # what a worker turns to measure how fast it is: kernels are interpreted here
    # What is asked of the GPU is answered as by an H100, and vLLM's attention for CPUs is not there to be asked.
    cpu_attention.has_kernel = lambda *_: True
    engine_args._is_cuda = lambda: True
    fused_rotary._capability = lambda: (9, 0)
    for each in (turning_backends, turning_queries, moving_requests):
        each.is_on_cuda = lambda: True  # type: ignore[attr-defined]
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    CpuPlatform.has_device_capability = lambda *_, **__: True

    check = CpuPlatform.check_and_update_config

    def check_and_schedule_as_asked(vllm_config: Any) -> None:
        """vLLM turns asynchronous scheduling off on CPUs."""
        asked = vllm_config.scheduler_config.async_scheduling
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked

    CpuPlatform.check_and_update_config = staticmethod(check_and_schedule_as_asked)


if __name__ == "__main__":
    interpret_triton()
    from tests.engine.run_engine import main

    install(json.loads(pathlib.Path(sys.argv[1]).read_text())["arguments"])
    main()

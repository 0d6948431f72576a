"""What a worker does once it has loaded its model, with a connector of ours or without one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from posenc_runtime.kernels.cpu.build import NoCompiler, kernels, may_use_tiles
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.cpu_seeds import keep_seeds
from posenc_runtime.vllm_adapter.in_worker.eager_functions import compile_nothing_while_serving
from posenc_runtime.vllm_adapter.in_worker.query_rotations import refuse_blocks, turn_queries
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE

# What attends in layers whose attention on a CPU is one of our C++ kernels.
_WITH_KERNELS = ("bias", "cope", "plain", "read_time")


@functools.cache
def prepare_after_loading() -> None:
    """Let this process's workers add what vLLM lacks on a CPU, and tell attention how queries turn."""
    from vllm.v1.worker.gpu_worker import Worker

    Worker.load_model = preparing(Worker.load_model)
    Worker.get_kv_cache_spec = turning(Worker.get_kv_cache_spec)
    Worker.initialize_from_config = checking(Worker.initialize_from_config)


def preparing(load_model: Callable[..., None]) -> Callable[..., None]:
    """``Worker.load_model`` of vLLM, which prepares the worker afterwards."""

    @functools.wraps(load_model)
    def load(self: Any, *arguments: Any, **named: Any) -> None:
        from vllm.platforms import current_platform

        load_model(self, *arguments, **named)
        if current_platform.is_cpu():
            keep_seeds()
            compile_nothing_while_serving()
            # vLLM's attention in bfloat16 uses AMX, and does not ask Linux for it. In most models a product of oneDNN
            # has asked before. Where products are small none has, and a short first prompt ended the worker with an
            # illegal instruction.
            may_use_tiles()
            compile_kernels(self.vllm_config)
        STATE.drafter = self.get_draft_model()

    return load


def turning(get_kv_cache_spec: Callable[..., Any]) -> Callable[..., Any]:
    """``Worker.get_kv_cache_spec`` of vLLM, which first tells attention how queries turn.

    Only now a worker knows how large a block of the cache is: in a model with recurrent layers, a block has room for a
    state. Next, vLLM measures how much memory a step takes.
    """

    @functools.wraps(get_kv_cache_spec)
    def get(self: Any) -> Any:
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config):
            turn_queries(self.get_model(), STATE.drafter, self.vllm_config)
        return get_kv_cache_spec(self)

    return get


def checking(initialize_from_config: Callable[..., None]) -> Callable[..., None]:
    """``Worker.initialize_from_config`` of vLLM, which first checks the blocks of layers that turn queries.

    vLLM makes them larger once more where layers cache keys of different sizes.
    """

    @functools.wraps(initialize_from_config)
    def initialize(self: Any, kv_cache_config: Any) -> None:
        refuse_blocks(kv_cache_config, self.vllm_config.compilation_config.static_forward_context)
        initialize_from_config(self, kv_cache_config)

    return initialize


def compile_kernels(vllm_config: Any) -> None:
    """Compile our kernels for the CPU now, where a layer needs them, and not in the middle of a request.

    Raises:
        Unsupported: when there is no compiler; the message says what to install.
    """
    layers = vllm_config.compilation_config.static_forward_context.values()
    if any(getattr(getattr(layer, "impl", None), "kind", None) in _WITH_KERNELS for layer in layers):
        try:
            kernels()
        except NoCompiler as error:
            raise Unsupported(str(error)) from None

"""Asks vLLM's attention for CPUs whether it has a kernel, before a request asks, fails, and ends the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.contract.attention_choice import choice_of
from posenc_runtime.vllm_adapter.contract.errors import Unsupported

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

_SIZES = range(8, 1025, 8)  # heads of models


def refuse_head_size(vllm_config: VllmConfig, head_size: int) -> None:
    """Check the size of a layer's heads, where the layer has vLLM's attention for CPUs.

    vLLM itself does not check it: it would start, and its engine would end at the first request.

    Raises:
        Unsupported: naming the sizes that there are kernels for.
    """
    from vllm.platforms import current_platform

    choice, model, cache = choice_of(vllm_config), vllm_config.model_config, vllm_config.cache_config
    has_its_own = model.use_mla or (choice is not None and choice.takes_ours)
    if has_its_own or not current_platform.is_cpu():
        return
    block_size, kept = cache.block_size or 32, cache.cache_dtype
    if has_kernel(head_size, model.dtype, block_size, kept):
        return
    sizes = ", ".join(str(size) for size in _SIZES if has_kernel(size, model.dtype, block_size, kept))
    dtype = str(model.dtype).removeprefix("torch.")
    raise Unsupported(
        f"the heads of the model must have one of the sizes that vLLM's attention on the CPU has kernels for, got "
        f"{head_size} with dtype {dtype} and kv_cache_dtype {kept}: "
        + (f"there are {sizes}; serve this model on a GPU" if sizes else "there is none; choose another kv_cache_dtype")
    )


def refuse_latent_dtype(vllm_config: VllmConfig) -> None:
    """Check the data type of a model with MLA on a CPU.

    vLLM itself does not check it: with AMX, its attention for latents takes bfloat16 alone, and loading the weights
    ends with a traceback.

    Raises:
        Unsupported: naming the data types that this attention takes.
    """
    from vllm.platforms import current_platform

    model, cache = vllm_config.model_config, vllm_config.cache_config
    if not (model.use_mla and current_platform.is_cpu()):
        return
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.selector import get_attn_backend

    with set_current_vllm_config(vllm_config):
        backend = get_attn_backend(model.get_head_size(), model.dtype, cache.cache_dtype, use_mla=True)
    if backend.supports_dtype(model.dtype):
        return
    name, dtype = backend.get_name(), str(model.dtype).removeprefix("torch.")
    known = " or ".join(str(one).removeprefix("torch.") for one in backend.supported_dtypes)
    raise Unsupported(
        f"dtype must be {known} for a model with MLA on this CPU, where vLLM takes its attention {name}, got {dtype}: "
        f"set dtype to {known}, or attention_backend to CPU_MLA, which is slower; both stand under engine in a "
        "deployment's file"
    )


def has_kernel(head_size: int, dtype: torch.dtype, block_size: int, kv_cache_dtype: str) -> bool:
    """Whether the kernel that plans attention knows such heads; it fails for those that attention fails for."""
    import torch
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    one = torch.tensor([1], dtype=torch.int32)
    try:
        ops.cpu_attn_get_scheduler_metadata(
            num_reqs=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=head_size,
            seq_lens=one,
            dtype=dtype,
            query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
            causal=True,
            sliding_window_size=-1,
            isa=_get_attn_isa(dtype, block_size, head_size, kv_cache_dtype),
            enable_kv_split=False,
            kv_cache_dtype=kv_cache_dtype,
        )
    except (RuntimeError, NotImplementedError):
        return False
    return True

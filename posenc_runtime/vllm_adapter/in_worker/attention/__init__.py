"""Attention backends inside vLLM: distance biases and contextual positions over its paged cache."""

from __future__ import annotations

import functools


@functools.cache
def register() -> None:
    """Register our backends with vLLM: for all attention on the CPU, and as ``CUSTOM`` on CUDA.

    Layers without a distance bias or an encoding of ours still get vLLM's attention. Two of vLLM's CUDA backends are
    replaced by subclasses that can rotate, or turn queries.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.cpu.PosencCPUBackend")
    register_backend(AttentionBackendEnum.CUSTOM, f"{__name__}.cuda.PosencCUDABackend")
    register_backend(AttentionBackendEnum.FLASH_ATTN, f"{__name__}.fused_rotary.flash.PosencFlashAttentionBackend")
    register_backend(AttentionBackendEnum.TRITON_ATTN, f"{__name__}.fused_rotary.triton.PosencTritonAttentionBackend")

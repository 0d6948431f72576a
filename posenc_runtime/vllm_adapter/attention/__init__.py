"""Attention backends inside vLLM: distance biases and contextual positions over its paged cache."""

from __future__ import annotations

import functools


@functools.cache
def register() -> None:
    """Let vLLM make its CPU attention by us, and on CUDA what asks for ``CUSTOM``; what needs nothing stays vLLM's.

    Two of its CUDA backends are ours, too, so that they can rotate.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.cpu.PosencCPUBackend")
    register_backend(AttentionBackendEnum.CUSTOM, f"{__name__}.cuda.PosencCUDABackend")
    register_backend(AttentionBackendEnum.FLASH_ATTN, f"{__name__}.fused_rotary.flash.PosencFlashAttentionBackend")
    register_backend(AttentionBackendEnum.TRITON_ATTN, f"{__name__}.fused_rotary.triton.PosencTritonAttentionBackend")

"""Attention backends inside vLLM: distance biases and contextual positions over its paged cache."""

from __future__ import annotations

_registered = False


def register() -> None:
    """Let vLLM make its CPU attention by us; what a deployment does not ask for stays vLLM's."""
    global _registered
    if _registered:
        return
    _registered = True
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, "posenc_runtime.vllm_adapter.attention.cpu.PosencCPUBackend")

"""vLLM's Triton backend, and the same with rotation: the engine's configuration says which."""

from __future__ import annotations

from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)

from posenc_runtime.vllm_adapter.attention.rotating import PositionsInMetadata, RotatesInAttention, RotatingBackend


class PosencTritonAttentionMetadataBuilder(PositionsInMetadata, TritonAttentionMetadataBuilder):
    pass


class RotatingTritonAttentionImpl(RotatesInAttention, TritonAttentionImpl):
    kind = "triton_attn_rotary"


class PosencTritonAttentionBackend(RotatingBackend, TritonAttentionBackend):
    rotating_impl = RotatingTritonAttentionImpl
    rotating_builder = PosencTritonAttentionMetadataBuilder

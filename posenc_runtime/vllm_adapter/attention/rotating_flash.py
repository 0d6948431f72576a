"""vLLM's FlashAttention backend, and the same with rotation: the engine's configuration says which."""

from __future__ import annotations

from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)

from posenc_runtime.vllm_adapter.attention.rotating import PositionsInMetadata, RotatesInAttention, RotatingBackend


class PosencFlashAttentionMetadataBuilder(PositionsInMetadata, FlashAttentionMetadataBuilder):
    pass


class RotatingFlashAttentionImpl(RotatesInAttention, FlashAttentionImpl):
    kind = "flash_attn_rotary"


class PosencFlashAttentionBackend(RotatingBackend, FlashAttentionBackend):
    rotating_impl = RotatingFlashAttentionImpl
    rotating_builder = PosencFlashAttentionMetadataBuilder

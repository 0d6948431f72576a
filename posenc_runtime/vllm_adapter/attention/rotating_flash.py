"""vLLM's FlashAttention backend, and the same with rotation: the engine's configuration says which."""

from __future__ import annotations

from typing import Any

from vllm.config import get_current_vllm_config_or_none
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)

from posenc_runtime.vllm_adapter.attention.fused_rotary import is_fused
from posenc_runtime.vllm_adapter.attention.rotating import PositionsInMetadata, RotatesInAttention


class PosencFlashAttentionMetadataBuilder(PositionsInMetadata, FlashAttentionMetadataBuilder):
    pass


class RotatingFlashAttentionImpl(RotatesInAttention, FlashAttentionImpl):
    kind = "flash_attn_rotary"


class PosencFlashAttentionBackend(FlashAttentionBackend):
    """Registered in place of vLLM's own, under its name."""

    @staticmethod
    def get_impl_cls() -> type[Any]:
        return RotatingFlashAttentionImpl if is_fused(get_current_vllm_config_or_none()) else FlashAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[Any]:
        return PosencFlashAttentionMetadataBuilder

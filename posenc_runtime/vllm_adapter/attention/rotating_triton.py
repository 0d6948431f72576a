"""vLLM's Triton backend, and the same with rotation: the engine's configuration says which."""

from __future__ import annotations

from typing import Any

from vllm.config import get_current_vllm_config_or_none
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)

from posenc_runtime.vllm_adapter.attention.fused_rotary import is_fused
from posenc_runtime.vllm_adapter.attention.rotating import PositionsInMetadata, RotatesInAttention


class PosencTritonAttentionMetadataBuilder(PositionsInMetadata, TritonAttentionMetadataBuilder):
    pass


class RotatingTritonAttentionImpl(RotatesInAttention, TritonAttentionImpl):
    kind = "triton_attn_rotary"


class PosencTritonAttentionBackend(TritonAttentionBackend):
    """Registered in place of vLLM's own, under its name."""

    @staticmethod
    def get_impl_cls() -> type[Any]:
        return RotatingTritonAttentionImpl if is_fused(get_current_vllm_config_or_none()) else TritonAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[Any]:
        return PosencTritonAttentionMetadataBuilder

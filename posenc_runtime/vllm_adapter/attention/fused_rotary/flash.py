"""vLLM's FlashAttention backend, which rotates if the engine's configuration says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)

from posenc_runtime.vllm_adapter.attention.fused_rotary.backend import (
    PositionsInMetadata,
    RotatesInAttention,
    RotatingBackend,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec


class PosencFlashAttentionMetadataBuilder(PositionsInMetadata, FlashAttentionMetadataBuilder):
    """Builds FlashAttention's metadata with the positions of a step's tokens."""

    @classmethod
    def get_cudagraph_support(cls, vllm_config: VllmConfig, kv_cache_spec: KVCacheSpec) -> AttentionCGSupport:
        """Which steps CUDA graphs can capture, by the version of FlashAttention that the engine asks for.

        vLLM decides by the version that is set when it imports the module. With Posenc, that is before the engine asks
        for one. Only version 3 can capture steps with prompts and lone queries together.
        """
        if vllm_config.attention_config.flash_attn_version not in (None, 3):
            return AttentionCGSupport.UNIFORM_BATCH
        support: AttentionCGSupport = super().get_cudagraph_support(vllm_config, kv_cache_spec)
        return support


class RotatingFlashAttentionImpl(RotatesInAttention, FlashAttentionImpl):
    """FlashAttention that rotates queries and keys and writes the cache itself."""

    kind = "flash_attn_rotary"


class PosencFlashAttentionBackend(RotatingBackend, FlashAttentionBackend):
    """vLLM's FlashAttention backend; if ``fused_rotary`` is on, its attention rotates."""

    rotating_impl = RotatingFlashAttentionImpl
    rotating_builder = PosencFlashAttentionMetadataBuilder

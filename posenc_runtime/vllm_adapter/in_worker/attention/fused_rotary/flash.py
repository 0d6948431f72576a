"""vLLM's FlashAttention backend, which rotates or turns queries if the engine's configuration says so."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)

from posenc_runtime.vllm_adapter.in_worker.attention.fused_rotary.backend import (
    PositionsInMetadata,
    RotatesInAttention,
    RotatingBackend,
)
from posenc_runtime.vllm_adapter.in_worker.attention.read_time_cuda import CutsLengths, TurnsQueries

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec


@dataclasses.dataclass
class DividedFlashAttentionMetadata(FlashAttentionMetadata):
    """See ``CutsLengths``."""

    near: FlashAttentionMetadata | None = None


class PosencFlashAttentionMetadataBuilder(PositionsInMetadata, CutsLengths, FlashAttentionMetadataBuilder):
    """Builds FlashAttention's metadata with the positions of a step's tokens; where queries turn, with cut lengths."""

    divided_metadata = DividedFlashAttentionMetadata

    @classmethod
    def get_cudagraph_support(cls, vllm_config: VllmConfig, kv_cache_spec: KVCacheSpec) -> AttentionCGSupport:
        """Which steps CUDA graphs can capture, by the version of FlashAttention that the engine asks for.

        vLLM decides by the version that is set when it imports the module. With Posenc, that is before the engine asks
        for one. Only version 3 can capture steps with prompts and lone queries together.
        """
        if vllm_config.attention_config.flash_attn_version not in (None, 3):
            return AttentionCGSupport.UNIFORM_BATCH  # the most that attention whose queries turn is captured in, too
        support: AttentionCGSupport = super().get_cudagraph_support(vllm_config, kv_cache_spec)
        return support


class RotatingFlashAttentionImpl(RotatesInAttention, FlashAttentionImpl):
    """FlashAttention that rotates queries and keys and writes the cache itself."""

    kind = "flash_attn_rotary"


class TurningFlashAttentionImpl(TurnsQueries, FlashAttentionImpl):
    """FlashAttention whose queries past the trained length turn."""


class PosencFlashAttentionBackend(RotatingBackend, FlashAttentionBackend):
    """vLLM's FlashAttention backend; if ``fused_rotary`` is on, its attention rotates; where queries turn, they do."""

    rotating_impl = RotatingFlashAttentionImpl
    turning_impl = TurningFlashAttentionImpl
    rotating_builder = PosencFlashAttentionMetadataBuilder

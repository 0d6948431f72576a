"""vLLM's Triton backend, which rotates if the engine's configuration says so."""

from __future__ import annotations

from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)

from posenc_runtime.vllm_adapter.attention.fused_rotary.backend import (
    PositionsInMetadata,
    RotatesInAttention,
    RotatingBackend,
)


class PosencTritonAttentionMetadataBuilder(PositionsInMetadata, TritonAttentionMetadataBuilder):
    """Builds Triton attention's metadata with the positions of a step's tokens."""


class RotatingTritonAttentionImpl(RotatesInAttention, TritonAttentionImpl):
    """Triton attention that rotates queries and keys and writes the cache itself."""

    kind = "triton_attn_rotary"


class PosencTritonAttentionBackend(RotatingBackend, TritonAttentionBackend):
    """vLLM's Triton backend; if ``fused_rotary`` is on, its attention rotates."""

    rotating_impl = RotatingTritonAttentionImpl
    rotating_builder = PosencTritonAttentionMetadataBuilder

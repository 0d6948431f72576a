"""vLLM's Triton backend, which rotates or turns queries if the engine's configuration says so."""

from __future__ import annotations

import dataclasses

from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadata,
    TritonAttentionMetadataBuilder,
)

from posenc_runtime.vllm_adapter.in_worker.attention.fused_rotary.backend import (
    PositionsInMetadata,
    RotatesInAttention,
    RotatingBackend,
)
from posenc_runtime.vllm_adapter.in_worker.attention.read_time_cuda import CutsLengths, TurnsQueries


@dataclasses.dataclass
class DividedTritonAttentionMetadata(TritonAttentionMetadata):
    """See ``CutsLengths``."""

    near: TritonAttentionMetadata | None = None


class PosencTritonAttentionMetadataBuilder(PositionsInMetadata, CutsLengths, TritonAttentionMetadataBuilder):
    """Builds Triton attention's metadata with positions of a step's tokens; where queries turn, with cut lengths."""

    divided_metadata = DividedTritonAttentionMetadata


class RotatingTritonAttentionImpl(RotatesInAttention, TritonAttentionImpl):
    """Triton attention that rotates queries and keys and writes the cache itself."""

    kind = "triton_attn_rotary"


class TurningTritonAttentionImpl(TurnsQueries, TritonAttentionImpl):
    """Triton attention whose queries past the trained length turn."""


class PosencTritonAttentionBackend(RotatingBackend, TritonAttentionBackend):
    """vLLM's Triton backend; if ``fused_rotary`` is on, its attention rotates; where queries turn, they do."""

    rotating_impl = RotatingTritonAttentionImpl
    turning_impl = TurningTritonAttentionImpl
    rotating_builder = PosencTritonAttentionMetadataBuilder

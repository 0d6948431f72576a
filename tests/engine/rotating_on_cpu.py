"""An engine whose attention rotates, on the CPU: ours of it runs, over plain attention in FlashAttention's place.

The scheduler, the blocks' scales, the backend's rotation and re-rotation are the product's own; the launch is its torch
reference. In one process only, which this module changes before the engine starts.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from posenc_runtime import vllm_adapter
from posenc_runtime.vllm_adapter.in_worker import cpu_key_order
from posenc_runtime.vllm_adapter.in_worker.activation import activate
from posenc_runtime.vllm_adapter.in_worker.attention.fused_rotary.backend import PositionsInMetadata, RotatesInAttention
from posenc_runtime.vllm_adapter.refusals import rotating_attention as fused_rotary
from posenc_runtime.vllm_adapter.settings.arguments import engine_args
from tests.engine.flash_attention_in_torch import flash_attn_varlen_func
from tests.engine.run_engine import main


class PlainImpl(CPUAttentionBackendImpl):
    """Reads the cache as CUDA backends do: keys beside values, token by token."""

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Any,
        value: Any,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        **_: Any,
    ) -> Tensor:
        if attn_metadata is None:
            return output.fill_(0)
        keys, values = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        return flash_attn_varlen_func(
            q=query,
            k=keys,
            v=values,
            out=output,
            cu_seqlens_q=attn_metadata.query_start_loc,
            seqused_k=attn_metadata.seq_lens,
            block_table=attn_metadata.block_table,
            softmax_scale=self.scale,
        )


class RotatingPlainImpl(RotatesInAttention, PlainImpl):
    supports_quant_query_input = False


class PositionedMetadataBuilder(PositionsInMetadata, CPUAttentionMetadataBuilder):
    pass


class RotatingCPUBackend(CPUAttentionBackend):
    @staticmethod
    def get_impl_cls() -> Any:
        return RotatingPlainImpl

    @staticmethod
    def get_builder_cls() -> Any:
        return PositionedMetadataBuilder


def install() -> None:
    vllm_adapter.register()
    activate()  # before what it registers for CPUs is replaced
    engine_args._is_cuda = lambda: True
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.{RotatingCPUBackend.__name__}")
    fused_rotary._capability = lambda: (9, 0)
    cpu_key_order.cpu_key_order = lambda *_: None  # type: ignore[assignment, return-value]


if __name__ == "__main__":
    from tests.engine import rotating_on_cpu

    rotating_on_cpu.install()
    main()

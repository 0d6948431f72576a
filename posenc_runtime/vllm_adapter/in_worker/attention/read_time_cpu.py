"""Attention on the CPU whose queries are turned when they read far keys: vLLM's own up to the trained length.

The cache is vLLM's, and vLLM writes it. A step without a query past the trained length is vLLM's alone. Decision 73.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm import _custom_ops, envs
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention.read_time import LayerLogits, ReadTime
from posenc_runtime.kernels.cpu.layout import Order, keys_and_values
from posenc_runtime.vllm_adapter.contract.active import turning_deployment_of
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.attention.layers import batch_of
from posenc_runtime.vllm_adapter.in_worker.attention.read_time import Part, Parts, divide, layer_logits
from posenc_runtime.vllm_adapter.in_worker.cpu_key_order import order_of

if TYPE_CHECKING:
    from vllm.v1.attention.backend import CommonAttentionMetadata

_EIGHT_BITS = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@dataclasses.dataclass
class DividedMetadata(CPUAttentionMetadata):
    """vLLM's metadata of a step.

    Attributes:
        parts: the step's queries, divided; None where all are below the trained length.
        of_near: vLLM's metadata of the queries below the trained length alone, where others are, too.
        order: in which the numbers of the cache's blocks lie.
    """

    order: Order = "columns"
    parts: Parts | None = None
    of_near: CPUAttentionMetadata | None = None


class DividingBuilder(CPUAttentionMetadataBuilder):
    """vLLM's builder, which also divides a step's queries where the deployment turns some of them."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        deployment = turning_deployment_of(self.vllm_config)
        self._trained = deployment.original_max_position_embeddings if deployment else None
        if deployment:
            self._order = self._readable_order()

    def _readable_order(self) -> Order:
        order = order_of(self.num_kv_heads, self.block_size, self.head_dim, self.dtype, self.isa)
        if order is None:
            raise Unsupported(
                f"scaling.rope_type must be another one on this CPU with engine.dtype {self.dtype}, because vLLM "
                f"keeps keys in the order of {self.isa}, which no kernel of posenc reads: set engine.dtype to float32"
            )
        return order

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CPUAttentionMetadata:
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        if self._trained is None or metadata.max_seq_len <= self._trained:
            return metadata
        parts = divide(batch_of(metadata), self._trained)
        if parts.far is None:
            return metadata
        fields = {field.name: getattr(metadata, field.name) for field in dataclasses.fields(metadata)}
        of_near = None if parts.near is None else self._metadata_of(metadata, parts.near)
        return DividedMetadata(**fields, order=self._order, parts=parts, of_near=of_near)

    def _metadata_of(self, metadata: CPUAttentionMetadata, part: Part) -> CPUAttentionMetadata:
        """What vLLM would build for a step of these queries alone."""
        batch = part.batch
        return dataclasses.replace(
            metadata,
            num_actual_tokens=len(part.rows),
            max_query_len=batch.max_query_len,
            query_start_loc=batch.query_start_loc,
            max_seq_len=batch.max_seq_len,
            seq_lens=batch.seq_lens,
            block_table=batch.block_table,
            slot_mapping=metadata.slot_mapping[part.rows],
            scheduler_metadata=_custom_ops.cpu_attn_get_scheduler_metadata(
                num_reqs=len(batch),
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                seq_lens=batch.seq_lens,
                dtype=self.dtype,
                query_start_loc=batch.query_start_loc,
                causal=metadata.causal,
                sliding_window_size=self.window_size,
                isa=self.isa,
                enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV,
                dynamic_causal=None,
                kv_cache_dtype=self.kv_cache_dtype,
            ),
        )


class ReadTimeImpl(CPUAttentionBackendImpl):
    """A layer's attention. Until it is told how the layer rotates, and in layers that do not, it is vLLM's.

    Attributes:
        kind: the kind of backend, for people to read.
    """

    kind = "read_time"
    _read_time: ReadTime | None = None
    _logits = LayerLogits()

    def turn_by(self, read_time: ReadTime, layer: Any) -> None:
        """Set how queries turn. Called once the weights are loaded.

        Args:
            layer: vLLM's, which has the scales of an 8-bit cache.
        """
        self._read_time = read_time
        scales = (torch.tensor([float(getattr(layer, name))]) for name in ("_k_scale_float", "_v_scale_float"))
        k_scale, v_scale = scales if self.is_fp8_kv_cache else (None, None)
        self._logits = layer_logits(self, k_scale, v_scale)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        parts = getattr(attn_metadata, "parts", None)
        if parts is None or self._read_time is None:
            attended: Tensor = super().forward(layer, query, key, value, kv_cache, attn_metadata, output)
            return attended
        assert isinstance(attn_metadata, DividedMetadata)
        if parts.near is not None:
            near = parts.near.of(output)
            super().forward(layer, parts.near.of(query), key, value, kv_cache, attn_metadata.of_near, near)
            _put(parts.near, near, output)
        far = parts.far.of(output)
        self._attend_far(parts.far.of(query), kv_cache, parts.far, far, attn_metadata.order)
        _put(parts.far, far, output)
        return output

    def _attend_far(self, query: Tensor, kv_cache: Tensor, part: Part, output: Tensor, order: Order) -> None:
        assert self._read_time is not None
        if self.is_fp8_kv_cache:
            kv_cache = kv_cache.view(_EIGHT_BITS[self.kv_cache_dtype])
        keys, values = keys_and_values(kv_cache, order)
        ops.read_time_attention(
            query, keys, values, part.batch, self._read_time, self.scale, output, self._logits, order=order
        )


def _put(part: Part, found: Tensor, output: Tensor) -> None:
    """Write what a part's queries found to their rows, unless it is a view of them."""
    if found.untyped_storage().data_ptr() != output.untyped_storage().data_ptr():
        output[part.rows] = found

"""Base classes that make a backend of vLLM rotate: metadata gets positions, attention rotates and writes the cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config_or_none
from vllm.v1.attention.backend import AttentionType

from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales
from posenc_runtime.kernels.rotary.rotary_step import RotaryStep
from posenc_runtime.vllm_adapter.contract.active import turning_deployment_of
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.refusals.rotating_attention import is_fused


class RotatingBackend:
    """First base of a class that is registered in place of a backend of vLLM, which is its second base.

    The class has the stock backend's name, and behaves like it if attention neither rotates nor turns queries.

    Attributes:
        rotating_impl: the stock implementation, with ``RotatesInAttention`` as first base.
        turning_impl: the stock implementation, with ``TurnsQueries`` as first base.
        rotating_builder: the stock metadata builder, with ``PositionsInMetadata`` and ``CutsLengths`` as first bases.
    """

    rotating_impl: type[Any]
    turning_impl: type[Any]
    rotating_builder: type[Any]

    @classmethod
    def get_impl_cls(cls) -> type[Any]:
        stock: Any = super()
        found: type[Any] = stock.get_impl_cls()
        vllm_config = get_current_vllm_config_or_none()
        if is_fused(vllm_config):
            return cls.rotating_impl
        return cls.turning_impl if turning_deployment_of(vllm_config) else found

    @classmethod
    def get_builder_cls(cls) -> type[Any]:
        return cls.rotating_builder


class PositionsInMetadata:
    """First base of a metadata builder whose second base is vLLM's: it adds the tokens' positions to the metadata."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False, **others: Any) -> Any:
        stock: Any = super()
        metadata = stock.build(common_prefix_len, common_attn_metadata, fast_build, **others)
        metadata.positions = common_attn_metadata.positions
        return metadata


class RotatesInAttention:
    """First base of an implementation whose second base is vLLM's: it gets queries and keys that are not rotated yet.

    vLLM writes the cache in a separate call before attention. That call does nothing here, because the launch that
    writes the cache also rotates the queries, which the call does not get.

    Raises:
        Unsupported: when a layer reads the keys of another.
    """

    supports_quant_query_input: bool
    _scales: RotaryScales | None = None
    _quantises_query = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        *others: Any,
        **named: Any,
    ) -> None:
        if kv_sharing_target_layer_name is not None:
            raise Unsupported(
                "attention.fused_rotary must be off for a model with a layer that reads another layer's keys, got a "
                f"layer that reads the keys of {kv_sharing_target_layer_name}"
            )
        stock: Any = super()
        stock.__init__(
            *(num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype),
            *(logits_soft_cap, attn_type, kv_sharing_target_layer_name, *others),
            **named,
        )
        self._is_float8 = kv_cache_dtype.startswith("fp8")
        if self._is_float8 and self.supports_quant_query_input:
            # The launch that rotates queries also quantises them. While vLLM builds the layer, it reads this attribute
            # to decide whether to quantise queries itself; later it reads it to choose its kernel's scale.
            self._quantises_query = True
            self.supports_quant_query_input = False

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        stock: Any = super()
        stock.process_weights_after_loading(act_dtype)
        self.supports_quant_query_input |= self._quantises_query

    def rotate_by(self, scales: RotaryScales) -> None:
        """Set the scales of all blocks. Called when the cache is allocated, before the first step."""
        self._scales = scales

    def do_kv_cache_update(self, *_: Any, **__: Any) -> None:
        """Nothing: ``forward`` writes the cache."""

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        *others: Any,
        **named: Any,
    ) -> Tensor:
        """vLLM's ``forward``, but ``query`` and ``key`` are not rotated yet."""
        stock: Any = super()
        if attn_metadata is not None:  # None while vLLM measures memory
            query = self._rotated_and_cached(layer, query, key, value, kv_cache, attn_metadata)
        attended: Tensor = stock.forward(layer, query, key, value, kv_cache, attn_metadata, output, *others, **named)
        return attended

    def _rotated_and_cached(
        self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, attn_metadata: Any
    ) -> Tensor:
        num_tokens = attn_metadata.num_actual_tokens
        dtype = torch.float8_e4m3fn if self._quantises_query else query.dtype
        rotated = torch.empty(num_tokens, *query.shape[1:], dtype=dtype, device=query.device)
        if self._scales is None:
            # To measure the memory of its graphs, vLLM runs a step over a small cache that no connector is told about.
            return rotated.copy_(query[:num_tokens])
        step = RotaryStep(
            query[:num_tokens],
            key[:num_tokens],
            value[:num_tokens],
            kv_cache.view(torch.float8_e4m3fn) if self._is_float8 else kv_cache,
            attn_metadata.positions[:num_tokens],
            attn_metadata.slot_mapping,
            self._scales,
            layer._k_scale,
            layer._v_scale,
            rotated,
            layer._q_scale,
        )
        ops.rotary_store(step)
        return rotated

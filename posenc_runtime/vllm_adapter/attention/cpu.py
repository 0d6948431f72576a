"""Our attention in vLLM's CPU backend: layers with a distance bias or contextual positions get ours, others vLLM's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from posenc_runtime.encodings.distance import Flat
from posenc_runtime.kernels.cpu import attention
from posenc_runtime.kernels.cpu.layout import keys_and_values
from posenc_runtime.kernels.paged import PagedBatch
from posenc_runtime.kernels.window import Window
from posenc_runtime.vllm_adapter.attention.choice import AttentionChoice, choice_of
from posenc_runtime.vllm_adapter.attention.layers import CopeOf, EncodingOf, FormOf, alibi_form, refuse
from posenc_runtime.vllm_adapter.attention.plain import attend as attend_plainly
from posenc_runtime.vllm_adapter.attention.record import RECORD
from posenc_runtime.vllm_adapter.support import Unsupported

if TYPE_CHECKING:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata


class PosencCPUBackend(CPUAttentionBackend):
    """Registered in the place of ``CPU_ATTN``."""

    @classmethod
    def supports_alibi_sqrt(cls) -> bool:
        return True

    @staticmethod
    def get_impl_cls() -> Any:
        return implementation


def implementation(
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
    *,
    use_alibi_sqrt: bool = False,
    distance_bias: FormOf | None = None,
    cope: CopeOf | None = None,
    attend: EncodingOf | None = None,
    **others: Any,
) -> CPUAttentionBackendImpl:
    """The attention of one layer.

    Args:
        distance_bias: the layer's bias, for models of ours; others pass ``alibi_slopes``.
        cope: the layer's contextual positions, for models of ours.
        attend: an encoding that attends by itself, in plain torch, for models of ours.

    Raises:
        Unsupported: when the deployment chose a backend that cannot do what the layer asks for.
    """
    vllm_config = get_current_vllm_config()
    choice = choice_of(vllm_config) or AttentionChoice(backend="stock")
    stock = (
        *(num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype),
        *(logits_soft_cap, attn_type, kv_sharing_target_layer_name),
    )
    if alibi_slopes is not None and distance_bias is None:
        slopes = alibi_slopes
        distance_bias = lambda: alibi_form(slopes, use_alibi_sqrt)  # noqa: E731
        stock_can = not use_alibi_sqrt
    else:
        stock_can = distance_bias is None and cope is None and attend is None
    kind = "contextual positions" if cope else "attention of its own" if attend else "distance bias"
    if choice.backend == "stock" and not stock_can:
        raise Unsupported(
            "attention.backend stock cannot serve this model: vLLM's CPU attention has no "
            f"{kind}. Set attention.backend to auto"
        )
    if choice.backend == "stock" or (choice.backend == "auto" and not (distance_bias or cope or attend)):
        return CPUAttentionBackendImpl(*stock, **others)
    refuse(
        kind,
        sliding_window=sliding_window,
        logits_soft_cap=logits_soft_cap,
        kv_sharing=kv_sharing_target_layer_name,
        attn_type="" if attn_type == AttentionType.DECODER else attn_type,
        kv_cache_dtype="" if kv_cache_dtype in ("auto", "float32", "float16", "bfloat16") else kv_cache_dtype,
        **others,
    )
    longest = vllm_config.model_config.max_model_len
    if choice.backend == "bias" and (cope or attend):
        raise Unsupported(f"attention.backend bias cannot serve {kind}: set it to auto")
    if choice.backend == "cope" and not cope:
        raise Unsupported(f"attention.backend cope needs contextual positions, got a layer with {kind}: set it to auto")
    if attend is not None:
        return PlainImpl(*stock, position=attend)
    if cope is not None:
        return CopeImpl(*stock, cope=cope)
    form = distance_bias or (lambda: Flat(num_heads))
    return BiasImpl(*stock, form=form, longest=longest, tolerance=choice.window_tolerance)


class _OwnLayout(CPUAttentionBackendImpl):
    """Keys and values as our kernels lay them out in vLLM's blocks, and a step's requests as they take them."""

    key_norms: Tensor | None = None

    def do_kv_cache_update(
        self, layer: torch.nn.Module, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        attention.store(key, value, kv_cache, slot_mapping, self.key_norms)

    @staticmethod
    def batch(metadata: CPUAttentionMetadata) -> PagedBatch:
        return PagedBatch(
            metadata.block_table,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.max_query_len,
            metadata.max_seq_len,
        )


class BiasImpl(_OwnLayout):
    """Attention with a distance bias, windowed where it decays."""

    def __init__(self, *stock: Any, form: FormOf, longest: int, tolerance: float) -> None:
        super().__init__(*stock)
        self._form, self._longest, self._tolerance = form, longest, tolerance
        self._bias: attention.TabledBias | None = None
        self.counts = torch.zeros(2, dtype=torch.int64)
        RECORD.windows.append(self.counts)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        self._bias = attention.TabledBias(self._form(), self._longest)

    def do_kv_cache_update(
        self, layer: torch.nn.Module, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        assert self._bias is not None
        if self._tolerance and self._bias.decays and self.key_norms is None:
            self.key_norms = torch.zeros(kv_cache.shape[:3])
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)

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
        if attn_metadata is None:  # while vLLM warms up
            return output
        assert self._bias is not None, "vLLM calls process_weights_after_loading before the first step"
        window = None if self.key_norms is None else Window(self.key_norms, self._tolerance, self.counts)
        batch = self.batch(attn_metadata)
        attention.bias_attention(query, kv_cache, batch, self._bias, self.scale, output, window)
        return output


class CopeImpl(_OwnLayout):
    """Attention with contextual positions."""

    def __init__(self, *stock: Any, cope: CopeOf) -> None:
        super().__init__(*stock)
        self._cope = cope
        self._table: attention.TabledCope | None = None
        self.counts = torch.zeros(2, dtype=torch.int64)
        RECORD.walks.append(self.counts)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        cope = self._cope()
        self._table = attention.TabledCope(cope.pos_emb, cope.qe_scale)

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
        if attn_metadata is None:  # while vLLM warms up
            return output
        assert self._table is not None, "vLLM calls process_weights_after_loading before the first step"
        batch = self.batch(attn_metadata)
        attention.cope_attention(query, kv_cache, batch, self._table, self.scale, output, self.counts)
        return output


class PlainImpl(_OwnLayout):
    """Attention of an encoding that has no kernel."""

    def __init__(self, *stock: Any, position: EncodingOf) -> None:
        super().__init__(*stock)
        self._position = position

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
        if attn_metadata is None:  # while vLLM warms up
            return output
        keys, values = keys_and_values(kv_cache)
        attend_plainly(query, keys, values, self.batch(attn_metadata), self._position(), self.scale, output)
        return output

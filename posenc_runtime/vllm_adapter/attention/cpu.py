"""Our attention in vLLM's CPU backend: layers with a distance bias or contextual positions get ours, others vLLM's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from posenc_runtime.encodings.distance import BiasForm
from posenc_runtime.kernels.cope import Cope
from posenc_runtime.kernels.cpu import attention
from posenc_runtime.kernels.cpu.layout import keys_and_values
from posenc_runtime.kernels.paged import PagedBatch
from posenc_runtime.kernels.window import Window
from posenc_runtime.vllm_adapter.attention.choice import AttentionChoice, choice_of
from posenc_runtime.vllm_adapter.attention.layers import Asked, Kind, refuse, select
from posenc_runtime.vllm_adapter.attention.plain import attend as attend_plainly
from posenc_runtime.vllm_adapter.attention.record import RECORD
from posenc_runtime.zoo.model.encoding import PositionEncoding

if TYPE_CHECKING:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata

_DTYPES = ("auto", "float32", "float16", "bfloat16")


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
    encoding: str | None = None,
    use_alibi_sqrt: bool = False,
    distance_bias: Callable[[], BiasForm] | None = None,
    cope: Callable[[], Cope] | None = None,
    attend: Callable[[], PositionEncoding] | None = None,
    **others: Any,
) -> CPUAttentionBackendImpl:
    """The attention of one layer; keywords as ``Asked`` has them.

    Raises:
        Unsupported: when the deployment chose a backend that cannot do what the layer asks for.
    """
    vllm_config = get_current_vllm_config()
    choice = choice_of(vllm_config) or AttentionChoice(backend="stock")
    asked = Asked(
        encoding=encoding,
        alibi_slopes=alibi_slopes,
        use_alibi_sqrt=use_alibi_sqrt,
        distance_bias=distance_bias,
        cope=cope,
        attend=attend,
    )
    kind = select(choice, asked, stock_has_alibi_sqrt=False)
    stock = (
        *(num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype),
        *(logits_soft_cap, attn_type, kv_sharing_target_layer_name),
    )
    if kind == "stock":
        return CPUAttentionBackendImpl(*stock, **others)
    refuse(
        asked,
        sliding_window=sliding_window,
        logits_soft_cap=logits_soft_cap,
        kv_sharing_target_layer_name=kv_sharing_target_layer_name,
        attn_type=attn_type if attn_type != AttentionType.DECODER else None,
        kv_cache_dtype=kv_cache_dtype if kv_cache_dtype not in _DTYPES else None,
        **others,
    )
    if kind == "bias":
        longest = vllm_config.model_config.max_model_len
        return BiasImpl(*stock, asked=asked, longest=longest, tolerance=choice.window_tolerance)
    return {"cope": CopeImpl, "plain": PlainImpl}[kind](*stock, asked=asked)


class _OwnLayout(CPUAttentionBackendImpl):
    """Keys and values as our kernels lay them out in vLLM's blocks, and a step's requests as they take them.

    Attributes:
        kind: of backend, for people.
    """

    kind: ClassVar[Kind]
    key_norms: Tensor | None = None

    def __init__(self, *stock: Any, asked: Asked) -> None:
        super().__init__(*stock)
        self.asked = asked

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

    kind = "bias"

    def __init__(self, *stock: Any, asked: Asked, longest: int, tolerance: float) -> None:
        super().__init__(*stock, asked=asked)
        self._longest, self._tolerance = longest, tolerance
        self._bias: attention.TabledBias | None = None
        self.counts = torch.zeros(2, dtype=torch.int64)
        RECORD.windows.append(self.counts)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        self._bias = attention.TabledBias(self.asked.form(self.num_heads), self._longest)

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

    kind = "cope"

    def __init__(self, *stock: Any, asked: Asked) -> None:
        super().__init__(*stock, asked=asked)
        self._table: attention.TabledCope | None = None
        self.counts = torch.zeros(2, dtype=torch.int64)
        RECORD.walks.append(self.counts)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        assert self.asked.cope is not None
        cope = self.asked.cope()
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

    kind = "plain"

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
        assert self.asked.attend is not None
        keys, values = keys_and_values(kv_cache)
        attend_plainly(query, keys, values, self.batch(attn_metadata), self.asked.attend(), self.scale, output)
        return output

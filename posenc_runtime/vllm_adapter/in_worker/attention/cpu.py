"""Our attention in vLLM's CPU backend, for layers with an encoding that vLLM lacks; other layers get vLLM's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.window import Window
from posenc_runtime.kernels.cpu import attention
from posenc_runtime.kernels.cpu.layout import keys_and_values
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice, Kind
from posenc_runtime.vllm_adapter.in_worker.attention.implementation import Implementation
from posenc_runtime.vllm_adapter.in_worker.attention.layers import Asked, batch_of
from posenc_runtime.vllm_adapter.in_worker.attention.plain import attend as attend_plainly
from posenc_runtime.vllm_adapter.in_worker.attention.read_time_cpu import DividingBuilder, ReadTimeImpl
from posenc_runtime.vllm_adapter.in_worker.attention.record import RECORD

if TYPE_CHECKING:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata


class PosencCPUBackend(CPUAttentionBackend):
    """The backend that is registered in place of ``CPU_ATTN``."""

    @classmethod
    def supports_alibi_sqrt(cls) -> bool:
        return True

    @staticmethod
    def get_impl_cls() -> Any:
        return IMPLEMENTATION

    @staticmethod
    def get_builder_cls() -> type[DividingBuilder]:
        return DividingBuilder


class _OwnLayout(CPUAttentionBackendImpl):
    """Stores keys and values in our kernels' layout, in vLLM's blocks, and calls a kernel with a step's requests.

    Attributes:
        kind: the kind of backend, for people to read.
        window: the norms of keys, by which kernels skip keys; None if every key is read.
    """

    kind: ClassVar[Kind]
    window: Window | None = None

    def __init__(self, *stock: Any, asked: Asked, choice: AttentionChoice) -> None:
        super().__init__(*stock)
        self.asked, self.choice = asked, choice

    def do_kv_cache_update(
        self, layer: torch.nn.Module, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        key_norms = None if self.window is None else self.window.key_norms
        attention.store(key, value, kv_cache, slot_mapping, key_norms)

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
        self.attend(query, kv_cache, batch_of(attn_metadata), output)
        return output

    def attend(self, query: Tensor, kv_cache: Tensor, batch: PagedBatch, output: Tensor) -> None:
        raise NotImplementedError


class BiasImpl(_OwnLayout):
    """Attention with a distance bias, and with a window if the bias decays."""

    kind = "bias"

    def __init__(self, *stock: Any, asked: Asked, choice: AttentionChoice) -> None:
        super().__init__(*stock, asked=asked, choice=choice)
        self._longest = get_current_vllm_config().model_config.max_model_len
        self._bias: attention.TabledBias | None = None

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        self._bias = attention.TabledBias(self.asked.form(self.num_heads), self._longest)

    def prepare(self, kv_cache: Tensor) -> None:
        """Allocate the window. Called once, when weights are loaded and the cache is allocated."""
        assert self._bias is not None
        if self.choice.window_tolerance and self._bias.decays:
            norms = torch.zeros(kv_cache.shape[:3], dtype=torch.float32)
            self.window = Window(norms, self.choice.window_tolerance, RECORD.windows.on(norms.device))

    def attend(self, query: Tensor, kv_cache: Tensor, batch: PagedBatch, output: Tensor) -> None:
        assert self._bias is not None, "vLLM calls process_weights_after_loading before the first step"
        attention.bias_attention(query, kv_cache, batch, self._bias, self.scale, output, self.window)


class CopeImpl(_OwnLayout):
    """Attention with contextual positions."""

    kind = "cope"
    _table: attention.TabledCope | None = None

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        assert self.asked.cope is not None
        cope = self.asked.cope()
        self._table = attention.TabledCope(cope.pos_emb, cope.qe_scale)

    def attend(self, query: Tensor, kv_cache: Tensor, batch: PagedBatch, output: Tensor) -> None:
        assert self._table is not None, "vLLM calls process_weights_after_loading before the first step"
        counts = RECORD.walks.on(query.device)
        attention.cope_attention(query, kv_cache, batch, self._table, self.scale, output, counts)


class PlainImpl(_OwnLayout):
    """Attention of an encoding that has no kernel."""

    kind = "plain"

    def attend(self, query: Tensor, kv_cache: Tensor, batch: PagedBatch, output: Tensor) -> None:
        assert self.asked.attend is not None
        keys, values = keys_and_values(kv_cache)
        attend_plainly(query, keys, values, batch, self.asked.attend(), self.scale, output)


IMPLEMENTATION = Implementation(
    CPUAttentionBackendImpl,
    {"bias": BiasImpl, "cope": CopeImpl, "plain": PlainImpl},
    stock_has_alibi_sqrt=False,
    turning=ReadTimeImpl,
)

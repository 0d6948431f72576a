"""Our attention on CUDA, as a subclass of vLLM's Triton backend, which keeps vLLM's metadata and cache.

The backend is registered as ``CUSTOM`` and chosen by ``attention_backend``; without that vLLM takes the fastest of its
own. Steps in which every request has one query can be captured in a CUDA graph: our launches depend only on shapes and
on upper bounds, and a graph's upper bound is the longest request that the engine accepts. Steps with prompts are not
captured, because a graph cannot know the number of query tiles. Decision 45.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadata,
    TritonAttentionMetadataBuilder,
)

from posenc_runtime.encodings.distance import BiasForm, Flat, Table, on_device, overwrite
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.heads import check_heads
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.window import Window, zero_norms
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice, Kind, choice_of
from posenc_runtime.vllm_adapter.in_worker.attention.implementation import Implementation
from posenc_runtime.vllm_adapter.in_worker.attention.layers import Asked, batch_of
from posenc_runtime.vllm_adapter.in_worker.attention.plain import attend as attend_plainly
from posenc_runtime.vllm_adapter.in_worker.attention.record import RECORD

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.cache import CacheDType
    from vllm.v1.kv_cache_interface import KVCacheSpec


class PosencMetadataBuilder(TritonAttentionMetadataBuilder):
    """Builds Triton attention's metadata for our kernels, and says which steps CUDA graphs can capture."""

    @classmethod
    def get_cudagraph_support(cls, vllm_config: VllmConfig, kv_cache_spec: KVCacheSpec) -> AttentionCGSupport:
        choice = choice_of(vllm_config)
        if choice is not None and choice.needs == "plain":  # plain torch asks the device how long each request is
            return AttentionCGSupport.NEVER
        return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE


class PosencCUDABackend(TritonAttentionBackend):
    """The backend that is registered as ``CUSTOM``."""

    supported_kv_cache_dtypes: ClassVar[list[CacheDType]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> Any:
        return IMPLEMENTATION

    @staticmethod
    def get_builder_cls() -> type[PosencMetadataBuilder]:
        return PosencMetadataBuilder


class _OwnKernels(TritonAttentionImpl):
    """Calls a kernel of ours with a step's requests.

    Attributes:
        kind: the kind of backend, for people to read.
    """

    kind: ClassVar[Kind]
    _prepared_for: tuple[int, int] | None = None

    def __init__(self, *stock: Any, asked: Asked, choice: AttentionChoice) -> None:
        super().__init__(*stock)
        self.asked, self.choice = asked, choice
        self.supports_quant_query_input = False

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        return False

    def prepare(self, kv_cache: Tensor) -> None:
        """Check the layer and make what it keeps beside its cache.

        Called when weights are loaded and the cache is allocated, before any graph is captured.

        Args:
            kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``.

        Raises:
            ValueError: when heads do not fit into the kernels' tiles.
        """
        if self.kind != "plain":
            check_heads(self.num_heads, kv_cache.shape[1], self.head_size, kv_cache.dtype)
        self.keep_beside(kv_cache)
        self._prepared_for = _identity(kv_cache)

    def follow(self, kv_cache: Tensor) -> None:
        """Prepare for another cache: to measure the memory of its graphs, vLLM runs steps over a small cache first.

        The connector is not told about that cache.
        """
        if self._prepared_for != _identity(kv_cache):
            self.prepare(kv_cache)

    def keep_beside(self, kv_cache: Tensor) -> None:
        """Make what this layer keeps beside a cache."""

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        super().process_weights_after_loading(act_dtype)
        if self._prepared_for is not None:
            self.follow_weights()

    def follow_weights(self) -> None:
        """Weights were loaded into a running engine: write what was computed from the old ones anew, in place."""

    def forward(
        self,
        layer: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: TritonAttentionMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        if attn_metadata is None:  # while vLLM measures memory
            return output.fill_(0)
        self.follow(kv_cache)
        assert attn_metadata.causal is True, "our kernels attend to earlier keys"
        keys, values = kv_cache.chunk(2, -1)
        self.attend(query, keys, values, batch_of(attn_metadata), output)
        return output

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch, output: Tensor) -> None:
        raise NotImplementedError


def _identity(kv_cache: Tensor) -> tuple[int, int]:
    """The address of a cache, and its number of blocks."""
    return kv_cache.data_ptr(), kv_cache.shape[0]


class BiasImpl(_OwnKernels):
    """Attention with a distance bias, and with a window if the bias decays."""

    kind = "bias"
    _form: BiasForm
    _window: Window | None = None

    def keep_beside(self, kv_cache: Tensor) -> None:
        self._form = on_device(self.asked.form(self.num_heads), kv_cache.device)
        if self.choice.window_tolerance and not isinstance(self._form, Flat | Table):
            norms = zero_norms(kv_cache.shape[:3], kv_cache.device)
            self._window = Window(norms, self.choice.window_tolerance, RECORD.windows.on(kv_cache.device))

    def follow_weights(self) -> None:
        overwrite(self._form, self.asked.form(self.num_heads))

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
        self.follow(kv_cache)
        if self._window is not None:
            ops.record_key_norms(self._window.key_norms, key, slot_mapping)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch, output: Tensor) -> None:
        ops.bias_attention(query, keys, values, batch, self._form, self.scale, output, self._window)


class CopeImpl(_OwnKernels):
    """Attention with contextual positions."""

    kind = "cope"
    _cope: Cope

    def keep_beside(self, kv_cache: Tensor) -> None:
        assert self.asked.cope is not None
        cope = self.asked.cope()
        self._cope = Cope(cope.pos_emb.to(kv_cache).contiguous(), cope.qe_scale)
        self._counts = RECORD.walks.on(kv_cache.device)

    def follow_weights(self) -> None:
        assert self.asked.cope is not None
        self._cope.pos_emb.copy_(self.asked.cope().pos_emb)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch, output: Tensor) -> None:
        ops.cope_attention(query, keys, values, batch, self._cope, self.scale, output, self._counts)


class PlainImpl(_OwnKernels):
    """Attention of an encoding that has no kernel."""

    kind = "plain"

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch, output: Tensor) -> None:
        assert self.asked.attend is not None
        attend_plainly(query, keys, values, batch, self.asked.attend(), self.scale, output)


IMPLEMENTATION = Implementation(
    TritonAttentionImpl, {"bias": BiasImpl, "cope": CopeImpl, "plain": PlainImpl}, stock_has_alibi_sqrt=True
)

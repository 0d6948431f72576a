"""Attention on CUDA whose queries are turned when they read far keys: vLLM's own up to the trained length.

The cache is vLLM's, and vLLM writes it. vLLM's kernel runs for all requests with the step's own launch, so that queries
below the trained length get its bits; requests without any such query are cut short for it. Then our kernels write the
rows of queries past the trained length. Which those are is found on the device: a CUDA graph can replay both launches
for any lengths, and nobody waits for the lengths of requests whose drafted tokens are still being checked. Decision 73.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType

from posenc_runtime.kernels import ops
from posenc_runtime.kernels.attention.heads import check_heads
from posenc_runtime.kernels.attention.read_time import LayerLogits, ReadTime
from posenc_runtime.vllm_adapter.contract.active import turning_deployment_of
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.attention.layers import batch_of
from posenc_runtime.vllm_adapter.in_worker.attention.read_time import layer_logits
from posenc_runtime.vllm_adapter.refusals.turning_backends import refuse_page

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec

# A step of several queries each is captured for one number of queries, as our kernels need: with one query the kernel
# for prompts is not launched.
_MOST_CAPTURED = AttentionCGSupport.UNIFORM_BATCH


class CutsLengths:
    """First base of a metadata builder whose second base is vLLM's: it adds the lengths that vLLM's kernel is given.

    Attributes:
        divided_metadata: vLLM's metadata with one more field, ``near``: the metadata for vLLM's kernel where a step may
            have queries past the trained length, None where it has none.
    """

    divided_metadata: ClassVar[type[Any]]
    supports_update_block_table: bool
    supports_draft_decode_metadata_update: bool
    _trained: int | None = None

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        stock: Any = super()
        stock.__init__(kv_cache_spec, layer_names, vllm_config, device)
        deployment = turning_deployment_of(vllm_config)
        if deployment is None:
            return
        self._trained = deployment.original_max_position_embeddings
        # Both would change lengths or tables of a step's metadata, and not those of ``near``.
        self.supports_update_block_table = self.supports_draft_decode_metadata_update = False
        compilation = vllm_config.compilation_config
        self._has_graphs = compilation.cudagraph_mode.has_full_cudagraphs()
        room = max(vllm_config.scheduler_config.max_num_seqs, compilation.max_cudagraph_capture_size or 0)
        self._cut = torch.zeros(room, dtype=torch.int32, device=device)  # in one place, where graphs read it

    @classmethod
    def get_cudagraph_support(cls, vllm_config: VllmConfig, kv_cache_spec: KVCacheSpec) -> AttentionCGSupport:
        stock: Any = super()
        support: AttentionCGSupport = stock.get_cudagraph_support(vllm_config, kv_cache_spec)
        if turning_deployment_of(vllm_config) and support.value > _MOST_CAPTURED.value:
            return _MOST_CAPTURED
        return support

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False, **others: Any) -> Any:
        stock: Any = super()
        metadata = stock.build(common_prefix_len, common_attn_metadata, fast_build, **others)
        # The longest request's length may be an upper bound. A graph was captured for the longest of all, so it reads
        # cut lengths even where all requests are short.
        is_near = self._trained is None or common_attn_metadata.max_seq_len <= self._trained
        if self._trained is None or (is_near and not self._has_graphs):
            return metadata
        lengths = common_attn_metadata.seq_lens
        starts = common_attn_metadata.query_start_loc[: len(lengths) + 1]
        # Chunked attention cuts requests into many, and is captured in no graph.
        cut = self._cut[: len(lengths)] if len(lengths) <= len(self._cut) else torch.empty_like(lengths)
        _cut_short(lengths, starts, self._trained, cut)
        if is_near:
            return metadata
        near = copy.copy(metadata)
        # A schedule is for lengths. Without one, FlashAttention makes its own on the device.
        near.seq_lens, near.scheduler_metadata = cut, None
        fields = {field.name: getattr(metadata, field.name) for field in dataclasses.fields(metadata)}
        return self.divided_metadata(**fields, near=near)


def _cut_short(lengths: Tensor, starts: Tensor, trained: int, cut: Tensor) -> None:
    """Write the lengths that vLLM's kernel is given: of requests whose queries are all far, the number of queries.

    Args:
        lengths, cut: int32 ``[num_requests]``, tokens.
        starts: int32 ``[num_requests + 1]``, of each request's queries.
    """
    num_queries = starts[1:] - starts[:-1]
    torch.where(lengths - num_queries >= trained, num_queries, lengths, out=cut)


class TurnsQueries:
    """First base of an implementation whose second base is vLLM's.

    Until it is told how the layer rotates, and in layers that do not or that see a window only, it is vLLM's.

    Attributes:
        kind: ``read_time`` where queries may turn; for people to read.
    """

    kind: str | None = None
    attn_type: str
    kv_cache_dtype: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    sinks: Tensor | None
    logits_soft_cap: float
    sliding_window: tuple[int, int] | None
    _read_time: ReadTime | None = None
    _logits = LayerLogits()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        stock: Any = super()
        stock.__init__(*arguments, **named)
        is_whole = self.sliding_window in (None, (-1, -1)) and getattr(self, "chunk_lookback", -1) < 0
        if is_whole and self.attn_type == AttentionType.DECODER:
            self.kind = "read_time"

    def turn_by(self, read_time: ReadTime, layer: Any) -> None:
        """Set how queries turn. Called once the weights are loaded.

        Args:
            layer: vLLM's, which has the scales of an 8-bit cache.

        Raises:
            Unsupported: when the kernels do not take the layer's heads or the page.
        """
        refuse_page(read_time.pages.page)
        try:
            check_heads(self.num_heads, self.num_kv_heads, self.head_size, layer.dtype)
        except ValueError as error:
            raise Unsupported(f"queries of {layer.layer_name} cannot be turned on a GPU: {error}") from None
        self._read_time = read_time
        k_scale, v_scale = (layer._k_scale.view(-1), layer._v_scale.view(-1)) if self._is_float8 else (None, None)
        self._logits = layer_logits(self, k_scale, v_scale)

    @property
    def _is_float8(self) -> bool:
        return self.kv_cache_dtype.startswith("fp8")

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        stock: Any = super()
        stock.process_weights_after_loading(act_dtype)
        if self._logits.sinks is not None and self.sinks is not None:  # loaded anew: in place, where graphs read them
            self._logits.sinks.copy_(self.sinks.detach())

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        return False

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
        stock: Any = super()
        near = getattr(attn_metadata, "near", None)
        if near is None or self._read_time is None:
            attended: Tensor = stock.forward(
                layer, query, key, value, kv_cache, attn_metadata, output, *others, **named
            )
            return attended
        stock.forward(layer, query, key, value, kv_cache, near, output, *others, **named)
        num_tokens = attn_metadata.num_actual_tokens
        query, output_of_step = query[:num_tokens], output[:num_tokens]
        if query.dtype != output.dtype:
            query = self._in_full(query, layer._q_scale, output.dtype)
        keys, values = (kv_cache.view(torch.float8_e4m3fn) if self._is_float8 else kv_cache).chunk(2, -1)
        batch, logits = batch_of(attn_metadata), self._logits
        ops.read_time_attention(
            query, keys, values, batch, self._read_time, self.scale, output_of_step, logits, only_far=True
        )
        return output

    def _in_full(self, query: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """Queries that vLLM has quantised for its kernel.

        Args:
            scale: of all, or of the queries that read each KV head.
        """
        of_heads = scale.view(-1).repeat_interleave(query.shape[1] // scale.numel())
        return (query.float() * of_heads[:, None]).to(dtype)

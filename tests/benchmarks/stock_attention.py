"""vLLM's attention on the CPU, called as its backend ``CPU_ATTN`` calls it."""

from __future__ import annotations

from torch import Tensor

from posenc_runtime.kernels.cpu.build import may_use_tiles
from tests.benchmarks.attention_step import Layer, Step


def isa_of(layer: Layer) -> str:
    """vLLM's name of the kernel that it takes for a layer here."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    return _get_attn_isa(layer.dtype, layer.block_size, layer.head_dim, "auto")


class StockAttention:
    """What vLLM's metadata builder prepares once a step, and what its implementation does in every layer.

    Args:
        slopes: float32 ``[num_heads]`` for ALiBi.
    """

    def __init__(self, step: Step, slopes: Tensor | None = None) -> None:
        # Only now: vLLM takes ten seconds to import.
        import vllm._custom_ops as ops
        from vllm import envs

        may_use_tiles()  # which a worker has done: without it vLLM's kernel for AMX is an illegal instruction
        self._ops = ops
        layer, paged = step.layer, step.paged
        self._paged, self._scale, self._slopes = paged, layer.scale, slopes
        self._isa = isa_of(layer)
        self._schedule = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(paged),
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            seq_lens=paged.seq_lens,
            dtype=layer.dtype,
            query_start_loc=paged.query_start_loc,
            causal=True,
            sliding_window_size=-1,
            isa=self._isa,
            enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV,
        )

    def store(self, keys: Tensor, values: Tensor, cache: Tensor, slots: Tensor) -> None:
        key_cache, value_cache = _halves(cache)
        self._ops.cpu_attn_reshape_and_cache(keys, values, key_cache, value_cache, slots, self._isa)

    def attend(self, query: Tensor, cache: Tensor, out: Tensor) -> None:
        key_cache, value_cache = _halves(cache)
        self._ops.cpu_attention_with_kv_cache(
            query=query,
            key_cache=key_cache,
            value_cache=value_cache,
            output=out,
            query_start_loc=self._paged.query_start_loc,
            seq_lens=self._paged.seq_lens,
            scale=self._scale,
            causal=True,
            alibi_slopes=self._slopes,
            sliding_window=-1,
            block_table=self._paged.block_table,
            softcap=0,
            scheduler_metadata=self._schedule,
            s_aux=None,
        )


def _halves(cache: Tensor) -> tuple[Tensor, Tensor]:
    num_blocks, num_kv_heads, block_size, _ = cache.shape
    key_cache, value_cache = cache.view(num_blocks, num_kv_heads, 2 * block_size, -1).chunk(2, dim=2)
    return key_cache, value_cache

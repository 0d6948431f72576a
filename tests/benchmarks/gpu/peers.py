"""What vLLM runs on CUDA, called as its backends call it. vLLM is imported only where its kernels can run."""

from __future__ import annotations

import os
from typing import Any, Literal

import torch
from torch import Tensor

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.table import cos_sin_cache
from posenc_runtime.kernels.attention.paged import PagedBatch
from tests.benchmarks.gpu.sizes import Model
from tests.benchmarks.gpu.trial import NotHere, Stage, described

Store = Literal["flash", "triton"]

# Of vLLM's TritonAttentionMetadataBuilder: a request's keys are divided among so many programs, where a batch is so
# small that the KV heads of its requests do not reach the number of programs that the builder wants at least.
_SEGMENTS, _LEAST_PROGRAMS = 16, 128


# Of its AttentionConfig: how many programs FlashAttention 3 may divide a request's keys among in a CUDA graph. Outside
# of one, where a step has more tokens than graphs are captured for, it chooses itself.
_SPLITS_IN_GRAPHS, _CHOOSES_ITSELF = 32, 0

# What its wrappers call: vLLM is imported without them, and says so in its log only.
_OPERATORS = (("_C", "rotary_embedding"), ("_C_cache_ops", "reshape_and_cache_flash"))


def missing() -> str | None:
    """Why vLLM's kernels cannot be called here, or None. Imports it."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        from vllm import _custom_ops  # noqa: F401
        from vllm.v1.attention.ops import triton_reshape_and_cache_flash, triton_unified_attention  # noqa: F401
    except Exception as error:  # whatever keeps a package from being imported
        return f"vLLM cannot be imported here: {described(error)}"
    for library, operator in _OPERATORS:
        if not hasattr(getattr(torch.ops, library), operator):
            return f"vLLM's compiled operators must be there, and {library}.{operator} is not: install its CUDA build"
    return None


def need_vllm(stage: Stage) -> None:
    """
    Raises:
        NotHere: when its kernels cannot run.
    """
    if stage.is_rehearsal:
        raise NotHere("vLLM's kernel needs CUDA")
    if (why := missing()) is not None:
        raise NotHere(why)


class StockRotation:
    """``RotaryEmbedding.forward_cuda``, then a backend's ``do_kv_cache_update``: FlashAttention's or Triton's.

    Args:
        num_positions: that its table of cosines and sines has.
    """

    def __init__(self, stage: Stage, num_positions: int, store: Store) -> None:
        need_vllm(stage)
        from vllm import _custom_ops

        self._model = model = stage.sizes.model
        self._rotate: Any = _custom_ops.rotary_embedding
        if store == "triton":
            from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash

            self._store: Any = triton_reshape_and_cache_flash
        else:
            self._store = _custom_ops.reshape_and_cache_flash
        table = cos_sin_cache(Default().frequencies(model.rotary_spec(), 1.0), num_positions)
        self._table = table.to(stage.device, model.dtype)  # vLLM keeps it in the model's data type
        self._one = torch.ones(1, dtype=torch.float32, device=stage.device)

    def __call__(self, projection: Tensor, kv_cache: Tensor, positions: Tensor, slot_mapping: Tensor) -> None:
        """Rotate queries and keys in place, and cache keys and values.

        Args:
            projection: ``[num_tokens, sum of model.widths]``.
            kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``.
        """
        head_dim = self._model.head_dim
        query, key, value = projection.split(self._model.widths, dim=1)
        self._rotate(positions, query, key, head_dim, self._table, True)
        keys, values = kv_cache.transpose(1, 2).split(head_dim, dim=-1)
        self._store(
            key.unflatten(1, (-1, head_dim)),
            value.unflatten(1, (-1, head_dim)),
            keys,
            values,
            slot_mapping,
            "auto",
            self._one,
            self._one,
        )


class UnifiedAttention:
    """``TritonAttentionImpl.forward`` with ALiBi's slopes: vLLM's Triton attention for prompts and decoding."""

    def __init__(self, stage: Stage, model: Model, slopes: Tensor) -> None:
        need_vllm(stage)
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention

        self._attend: Any = unified_attention
        self._model, self._slopes = model, slopes
        self._threshold = _LEAST_PROGRAMS // model.num_kv_heads
        rows = (self._threshold, model.num_heads, _SEGMENTS)
        self._segments = {
            "softmax_segm_output": torch.empty(*rows, model.head_dim, dtype=torch.float32, device=stage.device),
            "softmax_segm_max": torch.empty(rows, dtype=torch.float32, device=stage.device),
            "softmax_segm_expsum": torch.empty(rows, dtype=torch.float32, device=stage.device),
        }
        self._one = torch.ones(1, dtype=torch.float32, device=stage.device)

    def __call__(self, query: Tensor, kv_cache: Tensor, batch: PagedBatch, out: Tensor) -> None:
        """
        Args:
            query, out: ``[num_tokens, num_heads, head_dim]``.
            kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``.
        """
        keys, values = kv_cache.transpose(1, 2).split(self._model.head_dim, dim=-1)
        descale = self._one.expand(len(batch), self._model.num_kv_heads)
        self._attend(
            q=query,
            k=keys,
            v=values,
            out=out,
            cu_seqlens_q=batch.query_start_loc,
            max_seqlen_q=batch.max_query_len,
            seqused_k=batch.seq_lens,
            max_seqlen_k=batch.max_seq_len,
            softmax_scale=self._model.scale,
            causal=True,
            alibi_slopes=self._slopes,
            use_alibi_sqrt=False,
            window_size=(-1, -1),
            block_table=batch.block_table,
            softcap=0,
            q_descale=None,
            k_descale=descale,
            v_descale=descale,
            seq_threshold_3D=self._threshold,
            num_par_softmax_segments=_SEGMENTS,
            **self._segments,
        )


class FlashAttention:
    """``FlashAttentionImpl.forward`` with FlashAttention 3, the backend that vLLM chooses on an H100 by itself.

    Args:
        batch: of all calls.
        is_scheduled: whether the work is divided before, for all layers of a step, as ``FlashAttentionMetadataBuilder``
            does. Otherwise each call divides it.
    """

    def __init__(self, stage: Stage, model: Model, batch: PagedBatch, *, is_scheduled: bool = True) -> None:
        need_vllm(stage)
        from vllm.v1.attention.backends import fa_utils

        version = fa_utils.get_flash_attn_version(head_size=model.head_dim)
        if version != 3:
            raise NotHere(f"vLLM runs FlashAttention 3 on compute capability 9.0 only, and {version} here")
        self._attend: Any = fa_utils.flash_attn_varlen_func
        self._model, self._batch = model, batch
        self._one = torch.ones(1, dtype=torch.float32, device=stage.device)
        self._splits = _SPLITS_IN_GRAPHS if batch.max_query_len == 1 else _CHOOSES_ITSELF
        self._schedule: Tensor | None = None
        if is_scheduled:
            self._schedule = fa_utils.get_scheduler_metadata(
                batch_size=len(batch),
                max_seqlen_q=batch.max_query_len,
                max_seqlen_k=batch.max_seq_len,
                num_heads_q=model.num_heads,
                num_heads_kv=model.num_kv_heads,
                headdim=model.head_dim,
                cache_seqlens=batch.seq_lens,
                qkv_dtype=model.dtype,
                cu_seqlens_q=batch.query_start_loc,
                page_size=model.block_size,
                causal=True,
                window_size=(-1, -1),
                num_splits=self._splits,
            )

    def __call__(self, query: Tensor, kv_cache: Tensor, out: Tensor) -> None:
        """
        Args:
            query, out: ``[num_tokens, num_heads, head_dim]``.
            kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``.
        """
        keys, values = kv_cache.transpose(1, 2).split(self._model.head_dim, dim=-1)
        descale = self._one.expand(len(self._batch), self._model.num_kv_heads)
        self._attend(
            q=query,
            k=keys,
            v=values,
            out=out,
            cu_seqlens_q=self._batch.query_start_loc,
            max_seqlen_q=self._batch.max_query_len,
            seqused_k=self._batch.seq_lens,
            max_seqlen_k=self._batch.max_seq_len,
            softmax_scale=self._model.scale,
            causal=True,
            alibi_slopes=None,
            window_size=[-1, -1],
            block_table=self._batch.block_table,
            softcap=0.0,
            scheduler_metadata=self._schedule,
            fa_version=3,
            q_descale=descale,
            k_descale=descale,
            v_descale=descale,
            num_splits=self._splits,
        )

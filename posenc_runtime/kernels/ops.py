"""Chooses an implementation: the Triton kernel on CUDA, torch elsewhere. Triton is imported only where it runs.

Attention in torch is only for tests. The CPU backend calls ``kernels.cpu``, which has another cache layout; attention
with positions at read time reads vLLM's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from posenc_runtime.encodings.distance import BiasForm
from posenc_runtime.kernels.attention import read_time_reference
from posenc_runtime.kernels.attention import reference as attention_reference
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.read_time import PLAIN, LayerLogits, ReadTime
from posenc_runtime.kernels.attention.window import Window
from posenc_runtime.kernels.attention.window import record_key_norms as record_key_norms_in_torch
from posenc_runtime.kernels.cpu.layout import Order, are_halves
from posenc_runtime.kernels.rotary import reference, rerotate_cpu, rotary_store_reference
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange
from posenc_runtime.kernels.rotary.rotary_step import RotaryStep


def rope_rows(positions: Tensor, slot_mapping: Tensor, block_row_offset: Tensor, block_size: int, out: Tensor) -> None:
    """See ``reference.rope_rows``."""
    if positions.is_cuda:
        from posenc_runtime.kernels.rotary.rope_rows import rope_rows as kernel

        kernel(positions, slot_mapping, block_row_offset, block_size, out)
    else:
        reference.rope_rows(positions, slot_mapping, block_row_offset, block_size, out)


def rerotate(kv_caches: Sequence[Tensor], moves: BlockMoves, change: ScaleChange, layout: KeyLayout) -> None:
    """See ``reference.rerotate``, and ``reference.rerotate_own_scales`` for a layout with scales of their own."""
    layout.check(kv_caches)
    layout.check_moves(moves)
    if not kv_caches or not len(moves):
        return
    if kv_caches[0].is_cuda:
        from posenc_runtime.kernels.rotary.rerotate import rerotate as kernel

        kernel(kv_caches, moves, change, layout)
    elif layout.has_own_scales:  # vLLM caches no such keys on a CPU
        reference.rerotate_own_scales(kv_caches, moves, change, layout)
    else:
        rerotate_cpu.rerotate(kv_caches, moves, change, layout)


def rotary_store(step: RotaryStep) -> None:
    """See ``rotary_store_reference.rotary_store``, and ``RotaryStep.check`` for what is raised."""
    step.check()
    if not len(step.positions):
        return
    if step.query.is_cuda:
        from posenc_runtime.kernels.rotary.rotary_store import rotary_store as kernel

        kernel(step)
    else:
        rotary_store_reference.rotary_store(step)


def bias_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    form: BiasForm,
    scale: float,
    out: Tensor,
    window: Window | None = None,
) -> None:
    """See ``attention_reference.bias_attention``."""
    if query.is_cuda:
        from posenc_runtime.kernels.attention.bias_attention import bias_attention as kernel

        kernel(query, key_cache, value_cache, batch, form, scale, out, window)
    else:
        attention_reference.bias_attention(query, key_cache, value_cache, batch, form, scale, out, window)


def cope_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    cope: Cope,
    scale: float,
    out: Tensor,
    counts: Tensor | None = None,
) -> None:
    """See ``attention_reference.cope_attention``."""
    if query.is_cuda:
        from posenc_runtime.kernels.attention.cope_attention import cope_attention as kernel

        kernel(query, key_cache, value_cache, batch, cope, scale, out, counts)
    else:
        attention_reference.cope_attention(query, key_cache, value_cache, batch, cope, scale, out, counts)


def read_time_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    read_time: ReadTime,
    scale: float,
    out: Tensor,
    logits: LayerLogits = PLAIN,
    *,
    only_far: bool = False,
    order: Order = "columns",
) -> None:
    """See ``read_time_reference.read_time_attention``: the entry of attention with positions at read time.

    On the CPU the C++ kernel runs where the caches are ``cpu.layout.keys_and_values`` of vLLM's, and torch where they
    are not, or where only far queries are asked for.

    Args:
        order: of such caches.

    Raises:
        ValueError: see ``attention.read_time.check``; or when a kernel cannot read a tensor, or not in this order.
        NoCompiler: when the C++ kernel cannot be compiled here.
    """
    if query.is_cuda:
        from posenc_runtime.kernels.attention.read_time_attention import read_time_attention as on_cuda

        on_cuda(query, key_cache, value_cache, batch, read_time, scale, out, logits, only_far=only_far)
    elif are_halves(key_cache, value_cache, order) and not only_far:
        from posenc_runtime.kernels.cpu.read_time import read_time_attention as in_cpp

        in_cpp(query, key_cache, value_cache, batch, read_time, scale, out, logits, order)
    elif order != "columns":
        raise ValueError(
            f"order must be columns unless the caches are keys_and_values of vLLM's on a CPU and all queries are asked "
            f"for, got {order}: torch reads no other order"
        )
    else:
        read_time_reference.read_time_attention(
            query, key_cache, value_cache, batch, read_time, scale, out, logits, only_far=only_far
        )


def record_key_norms(key_norms: Tensor, keys: Tensor, slot_mapping: Tensor) -> None:
    """See ``window.record_key_norms``."""
    if key_norms.is_cuda:
        from posenc_runtime.kernels.attention.key_norms import record_key_norms as kernel

        kernel(key_norms, keys, slot_mapping)
    else:
        record_key_norms_in_torch(key_norms, keys, slot_mapping)

"""Attention with positions at read time on the CPU: calls the C++ kernel, with the signature of the reference."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.read_time import EIGHT_BITS, PLAIN, LayerLogits, ReadTime, check
from posenc_runtime.kernels.cpu import layout
from posenc_runtime.kernels.cpu.build import DTYPES, kernels

_CACHES = DTYPES | {torch.float8_e4m3fn: 3, torch.float8_e5m2: 4}
_TEMPERATURES = {"none": 0, "logn": 1, "yarn": 2}


def read_time_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    read_time: ReadTime,
    scale: float,
    out: Tensor,
    logits: LayerLogits = PLAIN,
) -> None:
    """See ``read_time_reference.read_time_attention``.

    Args:
        key_cache, value_cache: the views that ``layout.keys_and_values`` makes of a layer's cache. Its layout is the
            one in which vLLM's attention for CPUs keeps keys and values, except with AMX.

    Raises:
        ValueError: see ``read_time.check``; or when the kernel cannot read a tensor.
        NoCompiler: when the kernel cannot be compiled here.
    """
    check(query, key_cache, value_cache, batch, read_time, out, logits)
    if key_cache.dtype in EIGHT_BITS and query.dtype != torch.float32:
        num_tokens = int(batch.query_start_loc[-1])  # the others are padding
        wide = torch.empty(out.shape, dtype=torch.float32)
        _attend(query.float(), key_cache, value_cache, batch, read_time, scale, wide, logits)
        out[:num_tokens] = wide[:num_tokens]
    else:
        _attend(query, key_cache, value_cache, batch, read_time, scale, out, logits)


def _attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    read_time: ReadTime,
    scale: float,
    out: Tensor,
    logits: LayerLogits,
) -> None:
    arguments = layout.paged_of_halves(query, key_cache, value_cache, batch, scale, out)
    # Kept in names, because they must outlive the call.
    phases = read_time.phases.contiguous()
    k_scales, v_scales = (_of_heads(given, key_cache.shape[1]) for given in (logits.k_scale, logits.v_scale))
    pages = read_time.pages
    structure = layout.ReadTime(
        phases.data_ptr(),
        _address(logits.sinks),
        _address(k_scales),
        _address(v_scales),
        phases.numel(),
        int(read_time.is_neox_style),
        pages.trained_length,
        pages.page,
        pages.edge,
        pages.distance,
        _TEMPERATURES[pages.temperature],
        float(pages.tempered_from),
        logits.soft_cap,
    )
    kernels().posenc_read_time_attention(
        ctypes.byref(arguments), ctypes.byref(structure), ctypes.c_int32(_CACHES[key_cache.dtype])
    )


def _of_heads(scale: Tensor | None, num_kv_heads: int) -> Tensor | None:
    return None if scale is None else scale.expand(num_kv_heads).contiguous()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

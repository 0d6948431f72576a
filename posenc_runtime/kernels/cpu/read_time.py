"""Attention with positions at read time on the CPU: calls the C++ kernel, with the signature of the reference."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.read_time import EIGHT_BITS, PLAIN, LayerLogits, ReadTime, check
from posenc_runtime.kernels.cpu import layout
from posenc_runtime.kernels.cpu.build import DTYPES, kernels, may_use_tiles

_EIGHT_BITS = {torch.float8_e4m3fn: 3, torch.float8_e5m2: 4}
_CACHES: dict[layout.Order, dict[torch.dtype, int]] = {
    "columns": DTYPES | _EIGHT_BITS,
    "pairs": {torch.bfloat16: 5, torch.float8_e4m3fn: 6, torch.float8_e5m2: 7},
}
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
    order: layout.Order = "columns",
) -> None:
    """See ``read_time_reference.read_time_attention``.

    Args:
        key_cache, value_cache: the views of a layer's cache that ``layout.keys_and_values`` makes. vLLM's attention for
            CPUs keeps keys and values in pairs where it uses AMX.
        order: in which a block's numbers lie. Pairs are for queries in bfloat16.

    Raises:
        ValueError: see ``read_time.check``; or when the kernel cannot read a tensor.
        NoCompiler: when the kernel cannot be compiled here.
    """
    check(query, key_cache, value_cache, batch, read_time, out, logits)
    if order == "pairs" and query.dtype != torch.bfloat16:
        raise ValueError(f"query must be bfloat16 for keys in AMX's order, got {query.dtype}")
    if order == "columns" and key_cache.dtype in EIGHT_BITS and query.dtype != torch.float32:
        num_tokens = int(batch.query_start_loc[-1])  # the others are padding
        wide = torch.empty(out.shape, dtype=torch.float32)
        _attend(query.float(), key_cache, value_cache, batch, read_time, scale, wide, logits, order)
        out[:num_tokens] = wide[:num_tokens]
    else:
        _attend(query, key_cache, value_cache, batch, read_time, scale, out, logits, order)


def _attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    read_time: ReadTime,
    scale: float,
    out: Tensor,
    logits: LayerLogits,
    order: layout.Order,
) -> None:
    arguments = layout.paged_of_halves(query, key_cache, value_cache, batch, scale, out, order)
    # Kept in names, because they must outlive the call.
    phases = read_time.phases.contiguous()
    k_scales, v_scales = (_of_heads(given, key_cache.shape[1]) for given in (logits.k_scale, logits.v_scale))
    pages = read_time.pages
    structure = layout.ReadTime(
        phases.data_ptr(),
        _address(logits.sinks),
        _address(k_scales),
        _address(v_scales),
        phases.shape[1],
        int(read_time.is_neox_style),
        pages.trained_length,
        pages.page,
        pages.edge,
        pages.distance,
        pages.turns[-1].distance,
        pages.bounded_from,
        _TEMPERATURES[pages.temperature],
        float(pages.tempered_from),
        logits.soft_cap,
        int(may_use_tiles()),
    )
    kernels().posenc_read_time_attention(
        ctypes.byref(arguments), ctypes.byref(structure), ctypes.c_int32(_CACHES[order][key_cache.dtype])
    )


def _of_heads(scale: Tensor | None, num_kv_heads: int) -> Tensor | None:
    return None if scale is None else scale.expand(num_kv_heads).contiguous()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

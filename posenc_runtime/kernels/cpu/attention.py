"""Attention on the CPU: Python functions that call the C++ kernels, with nearly the signatures of the references."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from posenc_runtime.encodings.distance import BiasForm, Flat, Linear, Table
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.window import ROUNDING, Window
from posenc_runtime.kernels.cpu import layout
from posenc_runtime.kernels.cpu.build import DTYPES, kernels


class TabledBias:
    """A bias as the C++ kernels compute it: one slope for each head, or a table of the bias at each distance.

    Args:
        form: the model's bias.
        max_seq_len: tokens of the longest request; distances of a table end there.
    """

    def __init__(self, form: BiasForm, max_seq_len: int) -> None:
        self.form = form
        self.decays = not isinstance(form, Flat | Table)
        self._slopes = self._table = None
        if isinstance(form, Linear):
            self._slopes = form.slope.float().contiguous()
        elif isinstance(form, Table):
            self._table = form.values.float().contiguous()
        elif not isinstance(form, Flat):
            self._table = form.bias(torch.arange(max_seq_len, dtype=torch.float64)).float().contiguous()

    def structure(self, window: Window | None) -> layout.Bias:
        used = window if self.decays else None
        return layout.Bias(
            _address(self._slopes),
            _address(self._table),
            0 if self._table is None else self._table.shape[1],
            _address(used.key_norms if used else None),
            _address(window.counts if window else None),
            used.tolerance if used else 1.0,
            ROUNDING,
        )


def bias_attention(
    query: Tensor,
    cache: Tensor,
    batch: PagedBatch,
    bias: TabledBias,
    scale: float,
    out: Tensor,
    window: Window | None = None,
) -> None:
    """See ``attention_reference.bias_attention``. ``layout.keys_and_values`` describes the layout of ``cache``.

    Raises:
        ValueError: when the kernels cannot read a tensor.
        NoCompiler: when the kernels cannot be compiled here.
    """
    arguments = layout.paged(query, cache, batch, scale, out)
    kernels().posenc_bias_attention(
        ctypes.byref(arguments), ctypes.byref(bias.structure(window)), ctypes.c_int32(DTYPES[cache.dtype])
    )


class TabledCope:
    """A layer's table as the C++ kernel reads it: float32, with zeros up to a multiple of 32 positions."""

    def __init__(self, pos_emb: Tensor, qe_scale: float) -> None:
        self.npos = pos_emb.shape[1]
        self.qe_scale = qe_scale
        width = -(-self.npos // layout.TILE) * layout.TILE
        self._pos_emb = torch.zeros(pos_emb.shape[0], width, dtype=torch.float32)
        self._pos_emb[:, : self.npos] = pos_emb

    def structure(self, counts: Tensor | None) -> layout.Cope:
        return layout.Cope(self._pos_emb.data_ptr(), self.npos, self._pos_emb.shape[1], self.qe_scale, _address(counts))


def cope_attention(
    query: Tensor,
    cache: Tensor,
    batch: PagedBatch,
    cope: TabledCope,
    scale: float,
    out: Tensor,
    counts: Tensor | None = None,
) -> None:
    """See ``attention_reference.cope_attention``. ``layout.keys_and_values`` describes the layout of ``cache``.

    Args:
        counts: see ``attention_reference.cope_attention``.

    Raises:
        ValueError: when the kernels cannot read a tensor.
        NoCompiler: when the kernels cannot be compiled here.
    """
    arguments = layout.paged(query, cache, batch, scale, out)
    kernels().posenc_cope_attention(
        ctypes.byref(arguments), ctypes.byref(cope.structure(counts)), ctypes.c_int32(DTYPES[cache.dtype])
    )


def store(keys: Tensor, values: Tensor, cache: Tensor, slot_mapping: Tensor, key_norms: Tensor | None) -> None:
    """Write keys and values into their slots, and record the norms of the keys.

    Args:
        keys, values: ``[at least num_slots, num_kv_heads, head_dim]``, of the cache's data type.
        cache: in the layout that ``layout.keys_and_values`` describes; changed in place.
        slot_mapping: int64 ``[num_slots]``; -1 for a token that is not cached. The tokens of a block come in order.
        key_norms: see ``Window``; changed in place.

    Raises:
        ValueError: when the kernels cannot write a tensor.
        NoCompiler: when the kernels cannot be compiled here.
    """
    layout.check_cache(cache)
    for name, tensor in (("keys", keys), ("values", values)):
        if tensor.dtype != cache.dtype or tensor.stride(-1) != 1:
            raise ValueError(
                f"{name} must be {cache.dtype}, like the cache, with contiguous heads, got {tensor.dtype} and strides "
                f"{tensor.stride()}"
            )
    if slot_mapping.dtype != torch.int64 or not slot_mapping.is_contiguous():
        raise ValueError(
            f"slot_mapping must be int64 and contiguous, got {slot_mapping.dtype} and strides {slot_mapping.stride()}"
        )
    _, num_kv_heads, block_size, twice = cache.shape
    fresh = layout.New(
        keys.data_ptr(),
        values.data_ptr(),
        cache.data_ptr(),
        slot_mapping.data_ptr(),
        _address(key_norms),
        *keys.stride()[:2],
        *values.stride()[:2],
        *cache.stride()[:2],
        min(slot_mapping.shape[0], keys.shape[0]),
        num_kv_heads,
        twice // 2,
        block_size,
    )
    kernels().posenc_store(ctypes.byref(fresh), ctypes.c_int32(DTYPES[cache.dtype]))


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

"""The arguments of rotation into the paged cache, for one step of one layer, and their checks."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_FLOAT8 = torch.float8_e4m3fn


@dataclasses.dataclass(frozen=True)
class RotaryStep:
    """A step's tokens in one layer.

    Attributes:
        query: bfloat16, float16 or float32 ``[num_tokens, num_heads, head_dim]``. Query, key and value may be views of
            a packed QKV projection: their last stride must be 1, the others are free.
        key, value: in query's data type, ``[num_tokens, num_kv_heads, head_dim]``.
        kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``, keys before values. The last stride must be
            1. The data type is one that queries may have, or float8_e4m3fn; in float8, keys and values are divided by
            ``k_scale`` and ``v_scale`` and clamped to 448, and NaN stays NaN.
        positions: int64 ``[num_tokens]``.
        slot_mapping: int64 ``[at least 0]``; entries past ``num_tokens`` are ignored.
        scales: the rotations of all scales, and the scale of each block.
        k_scale, v_scale: float32, one element each; used if the cache is float8.
        out: where rotated queries are written, in query's shape; None rotates them in place. The data type is query's,
            or float8_e4m3fn; in float8, queries are divided by ``q_scale`` and clamped to 448.
        q_scale: float32, one element; used if ``out`` is float8.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    kv_cache: Tensor
    positions: Tensor
    slot_mapping: Tensor
    scales: RotaryScales
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    out: Tensor | None = None
    q_scale: Tensor | None = None

    def check(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: when a shape or data type differs from those above, rows are not contiguous, heads are narrower
                than ``rotary_dim``, ``block_scale`` is too short for the cache, or float8 lacks its scale. The message
                names the rule and the value.
        """
        query, key, value, kv_cache = self.query, self.key, self.value, self.kv_cache
        scales, out = self.scales, self.out
        num_tokens = self.positions.shape[0]
        _check_indices(self.positions, self.slot_mapping)
        if query.dtype not in _DTYPES or {key.dtype, value.dtype} != {query.dtype}:
            raise ValueError(
                "queries, keys and values must be of one data type, bfloat16, float16 or float32, got "
                f"{query.dtype}, {key.dtype} and {value.dtype}"
            )
        if query.dim() != 3 or query.shape[0] != num_tokens:
            raise ValueError(f"query must be [{num_tokens}, num_heads, head_dim], got {list(query.shape)}")
        head_dim = query.shape[2]
        if not 2 <= scales.rotary_dim <= head_dim:
            raise ValueError(f"rotary_dim must be in [2, {head_dim}], the width of a head, got {scales.rotary_dim}")
        if key.dim() != 3 or (key.shape[0], key.shape[2]) != (num_tokens, head_dim) or value.shape != key.shape:
            raise ValueError(
                f"key and value must be [{num_tokens}, num_kv_heads, {head_dim}], "
                f"got {list(key.shape)} and {list(value.shape)}"
            )
        if out is not None and (out.shape != query.shape or out.dtype not in (query.dtype, _FLOAT8)):
            raise ValueError(
                f"out must be {query.dtype} or float8_e4m3fn {list(query.shape)}, got {out.dtype} {list(out.shape)}"
            )
        if out is not None and out.dtype == _FLOAT8:
            _check_scale("q_scale", self.q_scale, "out")
        _check_cache(kv_cache, key, scales)
        if kv_cache.dtype == _FLOAT8:
            _check_scale("k_scale", self.k_scale, "cache")
            _check_scale("v_scale", self.v_scale, "cache")
        rows = (query, key, value, kv_cache) if out is None else (query, key, value, kv_cache, out)
        if any(tensor.stride(-1) != 1 for tensor in rows):
            raise ValueError(
                "the last stride must be 1 for query, key, value, kv_cache and out, "
                f"got {[tensor.stride(-1) for tensor in rows]}"
            )


def _check_indices(positions: Tensor, slot_mapping: Tensor) -> None:
    for name, indices in (("positions", positions), ("slot_mapping", slot_mapping)):
        if indices.dtype != torch.int64 or indices.dim() != 1 or not indices.is_contiguous():
            raise ValueError(
                f"{name} must be int64, contiguous and of one dimension, got {indices.dtype} {list(indices.shape)} "
                f"with strides {indices.stride()}"
            )


def _check_cache(kv_cache: Tensor, key: Tensor, scales: RotaryScales) -> None:
    num_kv_heads, head_dim = key.shape[1:]
    if kv_cache.dim() != 4 or (kv_cache.shape[1], kv_cache.shape[3]) != (num_kv_heads, 2 * head_dim):
        raise ValueError(
            f"kv_cache must be [num_blocks, {num_kv_heads}, block_size, {2 * head_dim}], got {list(kv_cache.shape)}"
        )
    if kv_cache.dtype not in (*_DTYPES, _FLOAT8):
        raise ValueError(f"kv_cache must be bfloat16, float16, float32 or float8_e4m3fn, got {kv_cache.dtype}")
    num_slots, num_scaled = kv_cache.shape[0] * kv_cache.shape[2], scales.block_scale.shape[0] * scales.block_size
    if num_scaled < num_slots:
        raise ValueError(f"block_scale must cover the cache's {num_slots} slots, got {num_scaled}")


def _check_scale(name: str, scale: Tensor | None, scaled: str) -> None:
    if scale is None or scale.dtype != torch.float32 or scale.numel() != 1:
        got = "None" if scale is None else f"{scale.dtype} {list(scale.shape)}"
        raise ValueError(f"{name} must be one float32 for a float8 {scaled}, got {got}")

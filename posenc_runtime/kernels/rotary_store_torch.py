"""Rotation into the paged cache, in torch: the specification of the kernel, float64 inside."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc_runtime.kernels.rotary_scales import RotaryScales

FLOAT8_LARGEST = 448.0  # of e4m3


def rotary_store(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kv_cache: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    scales: RotaryScales,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    out: Tensor | None = None,
) -> None:
    """Rotate queries and keys by the scale of each token's block, and write keys and values into their slots.

    A token is rotated by ``positions * phases``, an integer that wraps around as the angle does: exact at any position
    up to 2^31, but for the phase's own rounding of 2^-65 turns. The part of a head past ``rotary_dim`` is copied.

    A token with slot -1, or past the end of the slot mapping, is padding: nothing of it is cached. Its query is still
    rotated, at scale 0, as table-based engines rotate padding, too: no query is left unwritten, and none of them
    depends on a block that is not its own. ``key`` and ``value`` are only read. Of tokens with the same slot, any one
    is cached.

    Args:
        query: bfloat16, float16 or float32 ``[num_tokens, num_heads, head_dim]``. Like the next two it may be a view of
            a packed QKV projection: any strides but the last, which is 1.
        key, value: of the same data type, ``[num_tokens, num_kv_heads, head_dim]``.
        kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``, keys beside values; any strides but the
            last. Of a data type that queries may have, or float8_e4m3fn: then keys and values are divided by their
            scale and clamped to 448, and a NaN stays one.
        positions: int64 ``[num_tokens]``.
        slot_mapping: int64 ``[at least 0]``; more than ``num_tokens`` are ignored.
        scales: by what tokens are rotated.
        k_scale, v_scale: float32, one element each; read where the cache is float8.
        out: where queries go, like ``query``; None rotates them in place.
    """
    num_tokens = positions.shape[0]
    slots = torch.full_like(positions, -1)
    slots[: slot_mapping.shape[0]] = slot_mapping[:num_tokens]
    is_cached = slots >= 0
    block_scale = scales.block_scale[slots.clamp(min=0) // scales.block_size].long()
    scale = torch.where(is_cached, block_scale, 0)
    turns = positions[:, None] * scales.phases[scale]  # 2^-64 turns, modulo one
    angle = (turns.double() * (2 * math.pi / 2**64))[:, None]  # rad
    factor = scales.attention_factor[scale].double()[:, None, None]

    on_query, on_keys = (factor, factor) if scales.factor_on_keys else (factor * factor, torch.ones_like(factor))
    rotated = _rotated(query, on_query * angle.cos(), on_query * angle.sin(), scales)
    (query if out is None else out).copy_(rotated)
    keys = _rotated(key, on_keys * angle.cos(), on_keys * angle.sin(), scales)

    blocks = slots[is_cached] // kv_cache.shape[2], slots[is_cached] % kv_cache.shape[2]
    stored = torch.cat(
        (_stored(keys[is_cached], k_scale, kv_cache.dtype), _stored(value[is_cached], v_scale, kv_cache.dtype)), dim=-1
    )
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[kv_cache.element_size()]  # torch cannot scatter float8
    kv_cache.view(bits).transpose(1, 2)[blocks] = stored.view(bits)


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor, scales: RotaryScales) -> Tensor:
    """float64, of ``heads``' shape."""
    rotary, rest = heads.double().tensor_split([scales.rotary_dim], dim=-1)
    first, second = rotary.chunk(2, dim=-1) if scales.is_neox_style else (rotary[..., ::2], rotary[..., 1::2])
    turned = first * cos - second * sin, second * cos + first * sin
    together = torch.cat(turned, -1) if scales.is_neox_style else torch.stack(turned, -1).flatten(-2)
    return torch.cat((together, rest), dim=-1)


def _stored(rows: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float8_e4m3fn:
        assert scale is not None
        rows = (rows.double() / scale).clamp(-FLOAT8_LARGEST, FLOAT8_LARGEST).float()
    return rows.to(dtype)

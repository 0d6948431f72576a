"""Rotation into the paged cache in torch, computed in float64: the specification of the kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales
from posenc_runtime.kernels.rotary.rotary_step import RotaryStep

FLOAT8_LARGEST = 448.0  # of e4m3


def rotary_store(step: RotaryStep) -> None:
    """Rotate queries and keys by the scale of each token's block, and write keys and values into their slots.

    A token is rotated by the angle ``positions * phases``, an integer whose overflow drops whole turns. It is exact at
    any position up to 2^31, except that each phase is rounded by at most 2^-65 turns. The part of a head past
    ``rotary_dim`` is copied.

    A token with slot -1, or past the end of the slot mapping, is padding: neither its key nor its value is cached. Its
    query is rotated at scale number 0, because table-based engines rotate padding, too. So every query is written, and
    none depends on a block of another request. ``key`` and ``value`` are only read. If several tokens have the same
    slot, any one of them is cached.
    """
    query, kv_cache, scales, positions = step.query, step.kv_cache, step.scales, step.positions
    slots = torch.full_like(positions, -1)
    slots[: step.slot_mapping.shape[0]] = step.slot_mapping[: len(positions)]
    is_cached = slots >= 0
    block_scale = scales.block_scale[slots.clamp(min=0) // scales.block_size].long()
    scale = torch.where(is_cached, block_scale, 0)
    turns = positions[:, None] * scales.phases[scale]  # 2^-64 turns, modulo one
    angle = (turns.double() * (2 * math.pi / 2**64))[:, None]  # rad
    factor = scales.attention_factor[scale].double()[:, None, None]

    on_query, on_keys = (factor, factor) if scales.factor_on_keys else (factor * factor, torch.ones_like(factor))
    rotated = _rotated(query, on_query * angle.cos(), on_query * angle.sin(), scales)
    target = query if step.out is None else step.out
    target.copy_(_stored(rotated, step.q_scale, target.dtype))
    keys = _rotated(step.key, on_keys * angle.cos(), on_keys * angle.sin(), scales)

    blocks = slots[is_cached] // kv_cache.shape[2], slots[is_cached] % kv_cache.shape[2]
    stored = torch.cat(
        (
            _stored(keys[is_cached], step.k_scale, kv_cache.dtype),
            _stored(step.value[is_cached], step.v_scale, kv_cache.dtype),
        ),
        dim=-1,
    )
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[kv_cache.element_size()]  # torch cannot scatter float8
    kv_cache.view(bits).transpose(1, 2)[blocks] = stored.view(bits)


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor, scales: RotaryScales) -> Tensor:
    """Rotated heads, float64 in the shape of ``heads``."""
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

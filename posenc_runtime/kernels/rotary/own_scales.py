"""Triton: re-rotation of cached keys that have a scale of their own, one for each token and head.

vLLM fits such a scale to the largest number of a key (``int8_per_token_head``, ``fp8_per_token_head``). A turned key
can have a larger one, by up to the square root of two, so its scale may have to grow, and then all of its numbers are
rounded anew. Decision 79.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels.rotary.launches import addresses, division
from posenc_runtime.kernels.rotary.rerotation import (
    SCALE_BYTES,
    BlockMoves,
    KeyLayout,
    ScaleChange,
    largest,
    stored_alike,
)
from posenc_runtime.kernels.rotary.turns import cos_sin

_DTYPES = {torch.int8: tl.int8, torch.float8_e4m3fn: tl.float8e4nv}
_PAIRS = 8  # pairs of a thread
_WARPS = 4  # the most warps of a program


# Not specialised on what differs between changes and steps, as in ``rerotate``.
@triton.jit(do_not_specialize=["heads"], do_not_specialize_on_alignment=["p_sources", "p_targets", "p_first_positions"])
def _own_scales_kernel(  # type: ignore[no-untyped-def]
    p_caches,  # int64 [num_layers], addresses
    p_sources,
    p_targets,
    p_first_positions,
    p_phases,
    attention_ratio,
    num_layers,
    num_heads,  # of a layer
    heads,  # of a program
    stride_block,  # in units of ALIGNMENT, so that the compiler knows that rows begin at multiples of it
    stride_head,
    stride_token,
    DTYPE: tl.constexpr,
    LARGEST: tl.constexpr,  # of a key's numbers
    ALIGNMENT: tl.constexpr,  # bytes, as all that follows
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,  # of a key; its scale follows
    ROW: tl.constexpr,  # of a key, its scale, its value and the value's scale
    OFFSET: tl.constexpr,  # of a key, before its rotated part
    HALF: tl.constexpr,  # pairs
    IS_NEOX: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    BT: tl.constexpr,  # tokens
    BP: tl.constexpr,  # pairs, at least HALF
):
    TILES: tl.constexpr = (BLOCK_SIZE + BT - 1) // BT
    i_move = tl.program_id(0) // TILES
    b_source = tl.load(p_sources + i_move)
    b_target = tl.load(p_targets + i_move)
    o_token = (tl.program_id(0) % TILES) * BT + tl.arange(0, BT)
    o_pair = tl.arange(0, BP)
    b_phase = tl.load(p_phases + o_pair, mask=o_pair < HALF, other=0)
    b_position = (tl.load(p_first_positions + i_move) + o_token)[:, None]
    b_cos, b_sin = cos_sin(b_position * b_phase[None, :])  # [BT, BP]
    m_changed = (b_phase != 0)[None, :]
    m_token = o_token < BLOCK_SIZE
    m_pair = m_token[:, None] & (o_pair < HALF)[None, :]

    begin = tl.program_id(1) * heads
    end = tl.minimum(begin + heads, num_layers * num_heads)
    for index in tl.range(begin, end):
        i_head = (index % num_heads).to(tl.int64)
        p_cache = tl.load(p_caches + index // num_heads)
        p_keys = tl.multiple_of(p_cache.to(tl.pointer_type(DTYPE)), ALIGNMENT)
        p_values = tl.multiple_of(p_cache.to(tl.pointer_type(tl.int8)), ALIGNMENT)
        p_scales = p_cache.to(tl.pointer_type(tl.float32))
        o_row = i_head * stride_head + o_token.to(tl.int64) * stride_token  # [BT]
        o_source = (b_source * stride_block + o_row) * ALIGNMENT
        o_target = (b_target * stride_block + o_row) * ALIGNMENT
        p_source, p_target = p_keys + o_source, p_keys + o_target
        if IS_NEOX:
            o_first = (OFFSET + o_pair)[None, :]
            o_second = (OFFSET + o_pair + HALF)[None, :]
        else:
            o_first = (OFFSET + 2 * o_pair)[None, :]
            o_second = (OFFSET + 2 * o_pair + 1)[None, :]
        b_first = tl.load(p_source[:, None] + o_first, mask=m_pair)
        b_second = tl.load(p_source[:, None] + o_second, mask=m_pair)
        b_x = tl.where(m_pair, b_first.to(tl.float32), 0.0)
        b_y = tl.where(m_pair, b_second.to(tl.float32), 0.0)
        b_turned_x = tl.where(m_changed, b_x * b_cos - b_y * b_sin, b_x)
        b_turned_y = tl.where(m_changed, b_y * b_cos + b_x * b_sin, b_y)
        b_biggest = tl.max(tl.maximum(tl.abs(b_turned_x), tl.abs(b_turned_y)), axis=1)  # [BT]
        m_grows = b_biggest > LARGEST
        # The attention factor and what a key grows by go into its scale, where they round no number of the key.
        # float8 grows by two, so that halved numbers are exact but for the smallest.
        b_growth = tl.where(m_grows, 2.0 if tl.float8e4nv == DTYPE else b_biggest / LARGEST, 1.0)
        o_scale = HEAD_DIM // SCALE_BYTES
        b_scale = tl.load(p_scales + o_source // SCALE_BYTES + o_scale, mask=m_token) * (b_growth * attention_ratio)
        tl.store(p_scales + o_target // SCALE_BYTES + o_scale, b_scale, mask=m_token)

        is_copied = b_source != b_target
        m_same = ~(m_changed | m_grows[:, None])
        b_stored = tl.where(m_same, b_first, _rounded(b_turned_x / b_growth[:, None], DTYPE, LARGEST))
        tl.store(p_target[:, None] + o_first, b_stored, mask=m_pair)
        b_stored = tl.where(m_same, b_second, _rounded(b_turned_y / b_growth[:, None], DTYPE, LARGEST))
        tl.store(p_target[:, None] + o_second, b_stored, mask=m_pair)
        for BEGIN in tl.static_range(0, OFFSET, 2 * BP):
            _rest(p_source, p_target, m_token, m_grows, b_growth, is_copied, BEGIN, OFFSET, DTYPE, LARGEST, 2 * BP)
        for BEGIN in tl.static_range(OFFSET + 2 * HALF, HEAD_DIM, 2 * BP):
            _rest(p_source, p_target, m_token, m_grows, b_growth, is_copied, BEGIN, HEAD_DIM, DTYPE, LARGEST, 2 * BP)
        if is_copied:
            for BEGIN in tl.static_range(HEAD_DIM + SCALE_BYTES, ROW, 2 * BP):
                o_value = BEGIN + tl.arange(0, 2 * BP)
                m_value = m_token[:, None] & (o_value < ROW)[None, :]
                b_value = tl.load(p_values + o_source[:, None] + o_value[None, :], mask=m_value)
                tl.store(p_values + o_target[:, None] + o_value[None, :], b_value, mask=m_value)


@triton.jit
def _rounded(b_key, DTYPE: tl.constexpr, LARGEST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers as vLLM stores them: half away from zero for int8, to even for float8."""
    if tl.int8 == DTYPE:
        b_key = tl.where(b_key >= 0, b_key + 0.5, b_key - 0.5)
    return tl.clamp(b_key, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL).to(DTYPE)


@triton.jit
def _rest(  # type: ignore[no-untyped-def]
    p_source,
    p_target,
    m_token,
    m_grows,
    b_growth,
    is_copied,
    BEGIN: tl.constexpr,
    END: tl.constexpr,
    DTYPE: tl.constexpr,
    LARGEST: tl.constexpr,
    BD: tl.constexpr,
):
    """Store elements ``BEGIN`` to ``END - 1`` of each key that do not turn, in units of its new scale."""
    o_dim = BEGIN + tl.arange(0, BD)
    m_dim = m_token[:, None] & (o_dim < END)[None, :] & (is_copied | m_grows[:, None])
    b_key = tl.load(p_source[:, None] + o_dim[None, :], mask=m_dim)
    b_grown = _rounded(b_key.to(tl.float32) / b_growth[:, None], DTYPE, LARGEST)
    b_stored = tl.where(m_grows[:, None], b_grown, b_key)
    tl.store(p_target[:, None] + o_dim[None, :], b_stored, mask=m_dim)


def rerotate(kv_caches: Sequence[Tensor], moves: BlockMoves, change: ScaleChange, layout: KeyLayout) -> None:
    """See ``reference.rerotate_own_scales``. All tensors are on one CUDA device."""
    power = triton.next_power_of_2
    pairs = power(layout.rotary_dim // 2)
    tokens = min(power(layout.block_size), max(1, 32 * _WARPS * _PAIRS // pairs))
    num_warps = min(_WARPS, max(1, tokens * pairs // (32 * _PAIRS)))
    for caches in stored_alike(kv_caches):
        programs, heads = division(caches, len(moves), layout.block_size, tokens)
        alignment = math.gcd(16, *(cache.data_ptr() for cache in caches), *caches[0].stride()[:3])
        _own_scales_kernel[programs](
            addresses(caches),
            moves.sources,
            moves.targets,
            moves.first_positions,
            change.phases.to(caches[0].device),
            change.attention_ratio,
            len(caches),
            caches[0].shape[1],
            heads,
            *(stride // alignment for stride in caches[0].stride()[:3]),
            DTYPE=_DTYPES[caches[0].dtype],
            LARGEST=largest(caches[0].dtype),
            ALIGNMENT=alignment,
            BLOCK_SIZE=layout.block_size,
            HEAD_DIM=layout.head_dim,
            ROW=layout.row_dim,
            OFFSET=layout.rotary_offset,
            HALF=layout.rotary_dim // 2,
            IS_NEOX=layout.is_neox_style,
            SCALE_BYTES=SCALE_BYTES,
            BT=tokens,
            BP=pairs,
            num_warps=num_warps,
        )

"""Triton: re-rotation of cached keys, all layers of one kind in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels.rotary import own_scales
from posenc_runtime.kernels.rotary.launches import addresses, division
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, KeyLayout, ScaleChange, largest, stored_alike
from posenc_runtime.kernels.rotary.turns import cos_sin

_DTYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e5m2: tl.float8e5,
}
_PAIRS = 8  # pairs of a thread: 16 bytes of bfloat16, the widest access, and few enough not to spill registers
_COPIED = 8  # elements that are only copied take as many registers as one pair
_WARPS = 4  # the most warps of a program


# A new change of scale or a new number of moves must not recompile the kernel while requests wait. So the kernel is not
# specialised on a change's arguments. Nor is it on the alignment of the moves' columns: the columns are parts of one
# tensor, and where a column begins depends on the number of moves.
@triton.jit(
    do_not_specialize=["num_unchanged", "heads_of_program"],
    do_not_specialize_on_alignment=["p_sources", "p_targets", "p_first_positions", "p_positions"],
)
def _rerotate_kernel(  # type: ignore[no-untyped-def]
    p_caches,  # int64 [num_layers], addresses
    p_sources,
    p_targets,
    p_first_positions,  # None if there are positions on axes
    p_positions,  # [num_moves, NUM_AXES, BLOCK_SIZE], or None
    p_axes,  # of the pairs, or None
    p_phases,
    attention_ratio,
    num_unchanged,  # pairs before the first changed one
    num_layers,
    num_heads,  # of a layer
    heads_of_program,
    stride_block,
    stride_head,
    stride_token,
    stride_dim,
    DTYPE: tl.constexpr,
    LARGEST: tl.constexpr,  # that float8 holds; None for other types
    ALIGNMENT: tl.constexpr,  # bytes
    BLOCK_SIZE: tl.constexpr,
    NUM_AXES: tl.constexpr,
    ROW: tl.constexpr,  # elements of a key and its value
    OFFSET: tl.constexpr,  # of a key, before its rotated part
    HALF: tl.constexpr,  # pairs
    IS_NEOX: tl.constexpr,
    BT: tl.constexpr,  # tokens
    BP: tl.constexpr,  # pairs, at least HALF
    BR: tl.constexpr,  # elements after the rotated part, at least ROW - OFFSET - 2 * HALF
):
    TILES: tl.constexpr = (BLOCK_SIZE + BT - 1) // BT
    i_move = tl.program_id(0) // TILES
    b_source = tl.load(p_sources + i_move)
    b_target = tl.load(p_targets + i_move)
    o_token = (tl.program_id(0) % TILES) * BT + tl.arange(0, BT)
    o_pair = tl.arange(0, BP)
    b_phase = tl.load(p_phases + o_pair, mask=o_pair < HALF, other=0)
    m_changed = ((b_phase != 0) | (attention_ratio != 1.0))[None, :]
    if p_positions is None:
        b_position = (tl.load(p_first_positions + i_move) + o_token)[:, None]
    else:
        # Selected from the positions on all axes. If each pair loaded its own, threads would hold pairs as is best for
        # eight-byte elements, and would have to exchange keys.
        b_axis = tl.load(p_axes + o_pair, mask=o_pair < HALF, other=0)[None, :]
        b_position = tl.zeros((BT, BP), tl.int64)
        for AXIS in tl.static_range(NUM_AXES):
            o_position = (i_move * NUM_AXES + AXIS) * BLOCK_SIZE + o_token
            b_on_axis = tl.load(p_positions + o_position, mask=o_token < BLOCK_SIZE, other=0)
            b_position = tl.where(b_axis == AXIS, b_on_axis[:, None], b_position)
    b_cos, b_sin = cos_sin(b_position * b_phase[None, :])  # [BT, BP]
    b_cos *= attention_ratio
    b_sin *= attention_ratio

    # In place, leading pairs that do not change are skipped, in multiples of eight so that accesses stay wide.
    first_pair = tl.where(b_source == b_target, num_unchanged // 8 * 8, 0)
    m_token = (o_token < BLOCK_SIZE)[:, None]
    begin = tl.program_id(1) * heads_of_program
    end = tl.minimum(begin + heads_of_program, num_layers * num_heads)
    # While one head's keys are turned, those of the next two are being loaded. Heads do not overlap in memory, so no
    # load reads what another iteration stores.
    for index in tl.range(begin, end, num_stages=3):
        i_head = (index % num_heads).to(tl.int64)
        p_cache = tl.load(p_caches + index // num_heads).to(tl.pointer_type(DTYPE))
        p_cache = tl.multiple_of(p_cache, ALIGNMENT)  # Triton cannot know the alignment of an address from memory
        o_row = i_head * stride_head + o_token.to(tl.int64)[:, None] * stride_token
        p_source = p_cache + b_source * stride_block + o_row
        p_target = p_cache + b_target * stride_block + o_row
        if IS_NEOX:
            o_first = (OFFSET + o_pair)[None, :] * stride_dim
            o_second = (OFFSET + o_pair + HALF)[None, :] * stride_dim
            m_pair = m_token & ((o_pair < HALF) & (o_pair >= first_pair))[None, :]
            b_first = tl.load(p_source + o_first, mask=m_pair)
            b_second = tl.load(p_source + o_second, mask=m_pair)
            b_x, b_y = b_first.to(tl.float32), b_second.to(tl.float32)
            b_turned_x, b_turned_y = b_x * b_cos - b_y * b_sin, b_y * b_cos + b_x * b_sin
            b_stored_x, b_stored_y = _rounded(b_turned_x, DTYPE, LARGEST), _rounded(b_turned_y, DTYPE, LARGEST)
            tl.store(p_target + o_first, tl.where(m_changed, b_stored_x, b_first), mask=m_pair)
            tl.store(p_target + o_second, tl.where(m_changed, b_stored_y, b_second), mask=m_pair)
        else:
            o_member = tl.arange(0, 2 * BP)
            o_dim = (OFFSET + o_member)[None, :] * stride_dim
            m_dim = m_token & ((o_member < 2 * HALF) & (o_member >= 2 * first_pair))[None, :]
            b_keys = tl.load(p_source + o_dim, mask=m_dim)
            b_first, b_second = tl.split(tl.reshape(b_keys, (BT, BP, 2)))
            b_x, b_y = b_first.to(tl.float32), b_second.to(tl.float32)
            b_turned_x, b_turned_y = b_x * b_cos - b_y * b_sin, b_y * b_cos + b_x * b_sin
            b_stored_x, b_stored_y = _rounded(b_turned_x, DTYPE, LARGEST), _rounded(b_turned_y, DTYPE, LARGEST)
            b_turned = tl.join(tl.where(m_changed, b_stored_x, b_first), tl.where(m_changed, b_stored_y, b_second))
            tl.store(p_target + o_dim, tl.reshape(b_turned, (BT, 2 * BP)), mask=m_dim)
        if b_source != b_target:
            # In small parts, because all 512 elements of a latent at once would take too many registers.
            for BEGIN in tl.static_range(0, OFFSET, 2 * BP):
                _copy(p_source, p_target, m_token, stride_dim, BEGIN, OFFSET, 2 * BP)
            if OFFSET + 2 * HALF < ROW:
                _copy(p_source, p_target, m_token, stride_dim, OFFSET + 2 * HALF, ROW, BR)


@triton.jit
def _rounded(b_turned, DTYPE: tl.constexpr, LARGEST: tl.constexpr):  # type: ignore[no-untyped-def]
    if LARGEST is not None:
        b_turned = tl.clamp(b_turned, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return b_turned.to(DTYPE)


@triton.jit
def _copy(p_source, p_target, m_token, stride_dim, BEGIN: tl.constexpr, END: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy elements ``BEGIN`` to ``END - 1`` of each token, at most ``BD`` of them."""
    o_dim = BEGIN + tl.arange(0, BD)
    m_dim = m_token & (o_dim < END)[None, :]
    b_copied = tl.load(p_source + o_dim[None, :] * stride_dim, mask=m_dim)
    tl.store(p_target + o_dim[None, :] * stride_dim, b_copied, mask=m_dim)


def rerotate(kv_caches: Sequence[Tensor], moves: BlockMoves, change: ScaleChange, layout: KeyLayout) -> None:
    """See ``reference.rerotate``. All tensors are on one CUDA device. All layers with the same storage share a launch.

    Raises:
        ValueError: when ``layout`` has an order, which only the CPU backend uses.
    """
    if layout.has_own_scales:
        own_scales.rerotate(kv_caches, moves, change, layout)
        return
    if layout.order is not None:
        raise ValueError("order must be None for caches on a GPU, got a tensor: CUDA backends store keys in rows")
    power = triton.next_power_of_2
    pairs = power(layout.rotary_dim // 2)
    rest = power(layout.row_dim - layout.rotary_offset - layout.rotary_dim)
    width = max(pairs, rest // _COPIED)
    tokens = min(power(layout.block_size), max(1, 32 * _WARPS * _PAIRS // width))
    num_warps = min(_WARPS, max(1, tokens * width // (32 * _PAIRS)))
    for caches in stored_alike(kv_caches):
        programs, heads = division(caches, len(moves), layout.block_size, tokens)
        _rerotate_kernel[programs](
            addresses(caches),
            moves.sources,
            moves.targets,
            moves.first_positions,
            *_on_axes(moves, layout, caches[0].device),
            change.phases.to(caches[0].device),
            change.attention_ratio,
            change.num_unchanged,
            len(caches),
            caches[0].shape[1],
            heads,
            *caches[0].stride(),
            DTYPE=_DTYPES[caches[0].dtype],
            LARGEST=largest(caches[0].dtype),
            ALIGNMENT=16 if all(cache.data_ptr() % 16 == 0 for cache in caches) else caches[0].element_size(),
            BLOCK_SIZE=layout.block_size,
            NUM_AXES=1 if moves.positions is None else moves.positions.shape[1],
            ROW=layout.row_dim,
            OFFSET=layout.rotary_offset,
            HALF=layout.rotary_dim // 2,
            IS_NEOX=layout.is_neox_style,
            BT=tokens,
            BP=pairs,
            BR=rest,
            num_warps=num_warps,
        )


def _on_axes(moves: BlockMoves, layout: KeyLayout, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Positions on axes and the axis of each pair, or Nones for moves with one position a token."""
    if moves.positions is None or layout.axis_of_pair is None:
        return None, None
    return moves.positions.contiguous(), layout.axis_of_pair.to(device)

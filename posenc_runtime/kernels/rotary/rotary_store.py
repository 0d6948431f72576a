"""Triton: one launch for each layer rotates queries and keys, and writes keys and values into the cache."""

from __future__ import annotations

import triton
import triton.language as tl

from posenc_runtime.kernels.rotary.rotary_step import RotaryStep
from posenc_runtime.kernels.rotary.rotary_tile import (
    copy_elements,
    load_elements,
    load_pairs,
    store_elements,
    store_turned,
)
from posenc_runtime.kernels.rotary.turns import cos_sin

_PAIRS = 8  # pairs of a thread: 16 bytes of bfloat16, the widest access
_PASSED = 8  # elements that are only copied take as many registers as one pair
_WARPS = 4  # the most warps of a program
_PROGRAMS = 1024  # the fewest programs of a launch, if there is work for them: several for each multiprocessor


# The number of slots changes from step to step, and a new number must not recompile the kernel.
@triton.jit(do_not_specialize=["num_slots"])
def _rotary_store_kernel(  # type: ignore[no-untyped-def]
    p_query,
    p_out,
    p_key,
    p_value,
    p_cache,
    p_positions,
    p_slot_mapping,
    p_phases,
    p_attention_factor,
    p_block_scale,
    p_q_scale,  # None where queries are not scaled
    p_k_scale,  # None, as the next, where the cache is not scaled
    p_v_scale,
    num_slots,
    stride_query_token,
    stride_query_head,
    stride_out_token,
    stride_out_head,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_cache_block,
    stride_cache_head,
    stride_cache_token,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,  # pairs
    BLOCK_SIZE: tl.constexpr,
    SCALE_BLOCK_SIZE: tl.constexpr,
    IS_NEOX: tl.constexpr,
    FACTOR_ON_KEYS: tl.constexpr,
    IN_PLACE: tl.constexpr,
    BH: tl.constexpr,  # heads
    BP: tl.constexpr,  # pairs, at least HALF
    BR: tl.constexpr,  # at least HEAD_DIM - 2 * HALF
    BD: tl.constexpr,  # at least HEAD_DIM
):
    i_token = tl.program_id(0).to(tl.int64)
    i_part = tl.program_id(1)
    num_parts = tl.num_programs(1)
    position = tl.load(p_positions + i_token)
    slot = tl.load(p_slot_mapping + i_token, mask=i_token < num_slots, other=-1)
    # From the slot to the cosines the program waits for memory three times. The first tiles' rows are loaded meanwhile.
    p_query += i_token * stride_query_token
    p_key += i_token * stride_key_token
    p_value += i_token * stride_value_token
    # Parts take keys in reverse order, so that in a launch of many parts the ones with keys have no queries.
    i_kv_part = num_parts - 1 - i_part
    o_head = i_kv_part * BH + tl.arange(0, BH)
    b_key_x, b_key_y = load_pairs(p_key + o_head * stride_key_head, o_head < NUM_KV_HEADS, HALF, IS_NEOX, BH, BP)
    b_value = load_elements(p_value + o_head * stride_value_head, o_head < NUM_KV_HEADS, 0, HEAD_DIM, BD)
    o_head = i_part * BH + tl.arange(0, BH)
    b_x, b_y = load_pairs(p_query + o_head * stride_query_head, o_head < NUM_HEADS, HALF, IS_NEOX, BH, BP)
    tl.debug_barrier()  # keeps the compiler from waiting for the slot before these loads
    scale = tl.load(p_block_scale + slot // SCALE_BLOCK_SIZE, mask=slot >= 0, other=0).to(tl.int64)
    factor = tl.load(p_attention_factor + scale)
    o_pair = tl.arange(0, BP)
    b_phase = tl.load(p_phases + scale * HALF + o_pair, mask=o_pair < HALF, other=0)
    b_cos, b_sin = cos_sin(position * b_phase)

    if slot >= 0:
        b_key_cos, b_key_sin = b_cos, b_sin
        if FACTOR_ON_KEYS:
            b_key_cos, b_key_sin = b_cos * factor, b_sin * factor
        per_k_scale = None if p_k_scale is None else 1.0 / tl.load(p_k_scale)
        per_v_scale = None if p_v_scale is None else 1.0 / tl.load(p_v_scale)
        p_slot = p_cache + slot // BLOCK_SIZE * stride_cache_block + slot % BLOCK_SIZE * stride_cache_token
        for i_tile in range(i_kv_part, (NUM_KV_HEADS + BH - 1) // BH, num_parts):
            o_head = i_tile * BH + tl.arange(0, BH)
            m_head = o_head < NUM_KV_HEADS
            p_row = p_slot + o_head.to(tl.int64) * stride_cache_head
            store_turned(b_key_x, b_key_y, p_row, m_head, b_key_cos, b_key_sin, per_k_scale, HALF, IS_NEOX, BH, BP)
            if 2 * HALF < HEAD_DIM:
                copy_elements(p_key + o_head * stride_key_head, p_row, m_head, per_k_scale, 2 * HALF, HEAD_DIM, BR)
            store_elements(b_value, p_row + HEAD_DIM, m_head, per_v_scale, 0, HEAD_DIM, BD)
            if NUM_KV_HEADS > BH:  # without a next tile its loads would still take registers
                o_head += num_parts * BH
                m_head = o_head < NUM_KV_HEADS
                b_key_x, b_key_y = load_pairs(p_key + o_head * stride_key_head, m_head, HALF, IS_NEOX, BH, BP)
                b_value = load_elements(p_value + o_head * stride_value_head, m_head, 0, HEAD_DIM, BD)

    on_query = factor if FACTOR_ON_KEYS else factor * factor
    b_cos *= on_query
    b_sin *= on_query
    per_q_scale = None if p_q_scale is None else 1.0 / tl.load(p_q_scale)
    p_out += i_token * stride_out_token
    for i_tile in range(i_part, (NUM_HEADS + BH - 1) // BH, num_parts):
        o_head = i_tile * BH + tl.arange(0, BH)
        m_head = o_head < NUM_HEADS
        o_next = o_head + num_parts * BH
        b_next_x, b_next_y = load_pairs(p_query + o_next * stride_query_head, o_next < NUM_HEADS, HALF, IS_NEOX, BH, BP)
        p_row = p_out + o_head * stride_out_head
        store_turned(b_x, b_y, p_row, m_head, b_cos, b_sin, per_q_scale, HALF, IS_NEOX, BH, BP)
        if 2 * HALF < HEAD_DIM and not IN_PLACE:
            copy_elements(p_query + o_head * stride_query_head, p_row, m_head, per_q_scale, 2 * HALF, HEAD_DIM, BR)
        b_x, b_y = b_next_x, b_next_y


def rotary_store(step: RotaryStep) -> None:
    """See ``rotary_store_reference.rotary_store``. All tensors are on one CUDA device.

    A program takes one token and rotates its heads, a tile at a time, by the same cosines and sines. While it rotates
    one tile, the next is loaded. If there are few tokens, several programs share the heads of a token. Sums are
    float32.
    """
    query, key, value, kv_cache, scales = step.query, step.key, step.value, step.kv_cache, step.scales
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, half = key.shape[1], scales.rotary_dim // 2
    power = triton.next_power_of_2
    pairs = power(half)
    width = max(pairs, power(head_dim) // _PASSED)
    num_warps = min(_WARPS, max(1, power(num_kv_heads) * width // (32 * _PAIRS)))
    heads = max(1, 32 * num_warps * _PAIRS // width)
    tiles = triton.cdiv(num_heads, heads) + triton.cdiv(num_kv_heads, heads)
    target = query if step.out is None else step.out
    is_scaled = kv_cache.element_size() == 1
    _rotary_store_kernel[(num_tokens, min(tiles, triton.cdiv(_PROGRAMS, num_tokens)))](
        p_query=query,
        p_out=target,
        p_key=key,
        p_value=value,
        p_cache=kv_cache,
        p_positions=step.positions,
        p_slot_mapping=step.slot_mapping,
        p_phases=scales.phases,
        p_attention_factor=scales.attention_factor,
        p_block_scale=scales.block_scale,
        p_q_scale=step.q_scale if target.element_size() == 1 else None,
        p_k_scale=step.k_scale if is_scaled else None,
        p_v_scale=step.v_scale if is_scaled else None,
        num_slots=step.slot_mapping.shape[0],
        stride_query_token=query.stride(0),
        stride_query_head=query.stride(1),
        stride_out_token=target.stride(0),
        stride_out_head=target.stride(1),
        stride_key_token=key.stride(0),
        stride_key_head=key.stride(1),
        stride_value_token=value.stride(0),
        stride_value_head=value.stride(1),
        stride_cache_block=kv_cache.stride(0),
        stride_cache_head=kv_cache.stride(1),
        stride_cache_token=kv_cache.stride(2),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        HALF=half,
        BLOCK_SIZE=kv_cache.shape[2],
        SCALE_BLOCK_SIZE=scales.block_size,
        IS_NEOX=scales.is_neox_style,
        FACTOR_ON_KEYS=scales.factor_on_keys,
        IN_PLACE=step.out is None,
        BH=heads,
        BP=pairs,
        BR=power(max(1, head_dim - 2 * half)),
        BD=power(head_dim),
        num_warps=num_warps,
    )

"""Triton: CoPE's positions and their logits, found by the threads that a tensor core left the scores with.

For a scan, and for a load from addresses that it computes, Triton has layouts of its own: scores, addresses and logits
go to other threads and back, through shared memory, with barriers around each way. Here all of it stays in place: sums
are products with a triangle, and logits are looked up in assembly. Decision 38.
"""

from __future__ import annotations

import triton
import triton.language as tl

from posenc_runtime.kernels.attention.cope_tile import ONE, logits_at

_LARGE = tl.constexpr(1.5 * 2**23)  # a float32; one below 2^22 that is added to it loses its fraction
_LARGE_BITS = tl.constexpr(0x4B400000)  # what it is added to is its distance in the lowest bits


@triton.jit
def sums_by_product(b_gates):  # type: ignore[no-untyped-def]
    """As ``cope_tile.sums_by_scan``, to the bit.

    A gate is two whole numbers, of 2^12 units and of one. Neither is past 2^11, so both are exact in float16, and so
    are float32 sums of 64 of them, also where the compiler has them begin at ``_LARGE``.
    """
    BN: tl.constexpr = b_gates.shape[1]
    tl.static_assert(BN <= 64)
    o_key = tl.arange(0, BN)
    b_from_on = (o_key[:, None] >= o_key[None, :]).to(tl.float16)
    b_high = (b_gates * 2048 + _LARGE) - _LARGE
    b_low = (b_gates * ONE + ONE) - b_high * 4096 - ONE
    b_high = tl.dot(b_high.to(tl.float16), b_from_on) + _LARGE
    b_low = tl.dot(b_low.to(tl.float16), b_from_on) + _LARGE
    b_high, b_low = b_high.to(tl.int32, bitcast=True), b_low.to(tl.int32, bitcast=True)
    b_past = ((b_high - _LARGE_BITS) << 12) + (b_low - _LARGE_BITS)
    return b_past, tl.sum(tl.where((o_key == 0)[None, :], b_past, 0), 1)


@triton.jit
def store_pairs(  # type: ignore[no-untyped-def]
    p_pair, b_query, p_pos_emb, qe_scale, NPOS: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr
):
    """Write a table of each row's position logits: of each the way to the next, and itself less that.

    Between two of them a logit is the second number plus the first times one and the fraction, which is one bitwise
    operation away from a position in units. From the last position there is no way.

    Args:
        p_pair: two float32 each, int64 ``[NPOS, BM]``: rows, which stand near the same position, beside each other.
        b_query: ``[BM, BD]``.
    """
    BM: tl.constexpr = b_query.shape[0]
    BP: tl.constexpr = 64  # positions at a time: as many as most tables have
    for first in range(0, NPOS, BP):
        o_position = first + tl.arange(0, BP)
        b_here = logits_at(o_position, b_query, p_pos_emb, qe_scale, NPOS, HEAD_DIM, BD)
        b_next = logits_at(o_position + 1, b_query, p_pos_emb, qe_scale, NPOS, HEAD_DIM, BD)
        b_way = tl.where((o_position < NPOS - 1)[None, :], b_next - b_here, 0.0)
        b_pair = _bits(b_here - b_way) & 0xFFFFFFFF | (_bits(b_way) << 32)
        p_stored = p_pair + tl.arange(0, BM)[:, None] + o_position[None, :] * BM
        tl.store(p_stored, b_pair, mask=(o_position < NPOS)[None, :])


@triton.jit
def last_logits(p_pair, NPOS: tl.constexpr, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each row, what is added to all keys past the last position, float32 ``[BM]``."""
    b_pair = tl.load(p_pair + (NPOS - 1) * BM + tl.arange(0, BM))
    return b_pair.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def interpolated(p_pair, b_row, b_past):  # type: ignore[no-untyped-def]
    """The logits of keys that stand where ``cope_tile.positions`` says, float32 ``[BM, BN]``."""
    BM: tl.constexpr = b_past.shape[0]
    p_row = p_pair + tl.arange(0, BM) + b_row * BM
    return _looked_up(p_row[:, None], b_past, BM)


@triton.jit
def _looked_up(p_row, b_past, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        """{
            .reg .b32 whole, one_and_fraction;
            .reg .b64 address;
            .reg .f32 less, way;
            shr.u32 whole, $2, 23;
            mad.wide.u32 address, whole, $3, $1;
            ld.global.v2.f32 {less, way}, [address];
            lop3.b32 one_and_fraction, $2, 0x7FFFFF, 0x3F800000, 0xEA;
            fma.rn.f32 $0, way, one_and_fraction, less;
        }""",
        "=f,l,r,n",
        [p_row, b_past, 8 * BM],
        dtype=tl.float32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _bits(b_numbers):  # type: ignore[no-untyped-def]
    return b_numbers.to(tl.int32, bitcast=True).to(tl.int64)

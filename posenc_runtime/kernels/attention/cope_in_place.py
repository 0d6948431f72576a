"""Triton: CoPE's positions and their logits, computed by the threads that hold the scores after a matrix product.

Triton computes scans and gathers in register layouts of their own. Scores, addresses and logits would move to other
threads and back, through shared memory and barriers. The functions here leave them in place: a sum is a product with a
triangular matrix, and inline assembly looks up logits. Decision 38.
"""

from __future__ import annotations

import triton
import triton.language as tl

from posenc_runtime.kernels.attention.cope_tile import ONE, logits_at

_LARGE = tl.constexpr(1.5 * 2**23)  # a float32; adding a number below 2^22 to it rounds that number to a whole one
_LARGE_BITS = tl.constexpr(0x4B400000)  # the bits of _LARGE; the bits of a sum less these are the whole number


@triton.jit
def sums_by_product(b_gates):  # type: ignore[no-untyped-def]
    """Equal to ``cope_tile.sums_by_scan``, to the bit.

    A gate is split into two whole numbers, one in units of 2^12 and one in units. Neither exceeds 2^11, so float16
    holds both exactly, and float32 holds sums of 64 of them exactly.
    """
    BN: tl.constexpr = b_gates.shape[1]
    tl.static_assert(BN <= 64)
    o_key = tl.arange(0, BN)
    b_from_on = (o_key[:, None] >= o_key[None, :]).to(tl.float16)
    b_high = (b_gates * 2048 + _LARGE) - _LARGE
    b_low = (b_gates * ONE + ONE) - b_high * 4096 - ONE
    b_high = _whole(tl.dot(b_high.to(tl.float16), b_from_on))
    b_low = _whole(tl.dot(b_low.to(tl.float16), b_from_on))
    b_past = (b_high << 12) + b_low
    return b_past, tl.sum(tl.where((o_key == 0)[None, :], b_past, 0), 1)


@triton.jit
def _whole(b_sums):  # type: ignore[no-untyped-def]
    """Whole numbers below 2^22 as int32, by one addition, of which a GPU does more at a time than conversions."""
    return _plus_large(b_sums).to(tl.int32, bitcast=True) - _LARGE_BITS


@triton.jit
def _plus_large(b_sums):  # type: ignore[no-untyped-def]
    """``b_sums + _LARGE`` in assembly, which Triton does not look into.

    Triton would start the matrix product at ``_LARGE`` instead. ptxas 12.8 drops products of ``wgmma`` that start at a
    constant other than 0: the sums were wrong on an H100.
    """
    return tl.inline_asm_elementwise(
        "add.f32 $0, $1, 0f4B400000;", "=f,f", [b_sums], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def store_pairs(  # type: ignore[no-untyped-def]
    p_pair, b_query, p_pos_emb, qe_scale, NPOS: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr
):
    """Write each row's position logits as pairs: the step from a logit to the next one, and the logit minus the step.

    A logit between two positions is the second number plus the first times ``1 + fraction``, and one bitwise operation
    makes ``1 + fraction`` of a position in units. The step from the last position is 0.

    Args:
        p_pair: int64 ``[NPOS, BM]``, each two float32. All rows of a position are adjacent, because rows stand near the
            same position.
        b_query: ``[BM, BD]``.
    """
    BM: tl.constexpr = b_query.shape[0]
    BP: tl.constexpr = 64  # positions at a time; most tables have that many
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
    """The logit of each row's last position, which all keys there get, float32 ``[BM]``."""
    b_pair = tl.load(p_pair + (NPOS - 1) * BM + tl.arange(0, BM))
    return b_pair.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def interpolated(p_pair, b_row, b_past):  # type: ignore[no-untyped-def]
    """The logits of keys at the positions that ``cope_tile.positions`` returns, float32 ``[BM, BN]``."""
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

"""What Triton's interpreter knows nothing of, assembly, in its own words."""

from __future__ import annotations

import triton
import triton.language as tl

from posenc_runtime.kernels.attention import cope_in_place, cope_tile


def mend() -> None:
    """From here on the interpreter finds these where kernels have assembly."""
    cope_tile.reciprocal = _reciprocal
    cope_in_place._looked_up = _looked_up
    cope_in_place._plus_large = _plus_large


@triton.jit
def _reciprocal(b_numbers):  # type: ignore[no-untyped-def]
    return 1.0 / b_numbers


@triton.jit
def _plus_large(b_sums):  # type: ignore[no-untyped-def]
    return b_sums + 1.5 * 2**23


@triton.jit
def _looked_up(p_row, b_past, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    b_pair = tl.load(p_row + (b_past >> 23) * BM)
    b_less, b_way = b_pair.to(tl.int32), (b_pair >> 32).to(tl.int32)
    b_one_and_fraction = (b_past & 0x7FFFFF | 0x3F800000).to(tl.float32, bitcast=True)
    return b_less.to(tl.float32, bitcast=True) + b_way.to(tl.float32, bitcast=True) * b_one_and_fraction

"""Give the same keys positions in tiles of several sizes, by scans and by products, in the interpreter.

Prints, as JSON, how many positions differ from those by scans in the largest tiles.
"""

from __future__ import annotations

import json

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels.attention.cope_in_place import sums_by_product
from posenc_runtime.kernels.attention.cope_tile import BITS, fraction, gate, positions, sums_by_scan
from tests.kernels import interpreted_assembly

ROWS, KEYS, NPOS = 16, 192, 64


@triton.jit
def _positions_kernel(  # type: ignore[no-untyped-def]
    p_scores,
    p_out,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    NPOS: tl.constexpr,
    BN: tl.constexpr,
    BY_PRODUCT: tl.constexpr,
):
    o_row = tl.arange(0, ROWS)
    b_newer = tl.zeros([ROWS], tl.int64)
    for i_tile in range(KEYS // BN):
        o_score = o_row[:, None] * KEYS + KEYS - (i_tile + 1) * BN + tl.arange(0, BN)[None, :]
        b_gates = gate(tl.load(p_scores + o_score))
        b_past, b_tile = sums_by_product(b_gates) if BY_PRODUCT else sums_by_scan(b_gates)
        b_row, b_past = positions(b_past, b_newer, NPOS)
        tl.store(p_out + o_score, b_row[:, None] + (b_past >> BITS) + fraction(b_past).to(tl.float64))
        b_newer += b_tile


def found(tile: int, by_product: bool) -> Tensor:
    """The positions of all keys, of which a third stand at the last one; gates of every size, open and shut ones."""
    scores = 8 * torch.randn(ROWS, KEYS, generator=torch.Generator().manual_seed(9))
    scores[:, ::17], scores[:, 5::19] = 200, -float("inf")
    out = torch.empty(ROWS, KEYS, dtype=torch.float64)
    _positions_kernel[(1,)](scores, out, ROWS, KEYS, NPOS, tile, by_product)
    return out


if __name__ == "__main__":
    interpreted_assembly.mend()
    whole = found(64, by_product=False)
    print(
        json.dumps(
            {
                f"{tile} {how}": int((found(tile, by_product) != whole).sum())
                for how, by_product in (("scanned", False), ("multiplied", True))
                for tile in (2, 8, 16, 32, 64)
            }
        )
    )

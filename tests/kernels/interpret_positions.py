"""Give the same keys positions in tiles of several sizes, in the interpreter; print how many logits differ, as JSON."""

from __future__ import annotations

import json

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc_runtime.kernels.cope_tile import gate, position_logits

ROWS, KEYS, NPOS = 16, 192, 64


@triton.jit
def _positions_kernel(  # type: ignore[no-untyped-def]
    p_scores, p_logits, p_out, ROWS: tl.constexpr, KEYS: tl.constexpr, NPOS: tl.constexpr, BN: tl.constexpr
):
    o_row = tl.arange(0, ROWS)
    b_newer = tl.zeros([ROWS], tl.int64)
    for i_tile in range(KEYS // BN):
        o_score = o_row[:, None] * KEYS + KEYS - (i_tile + 1) * BN + tl.arange(0, BN)[None, :]
        m_score = o_score >= 0
        b_gates = gate(tl.load(p_scores + o_score), m_score)
        tl.store(p_out + o_score, position_logits(b_gates, b_newer, p_logits + o_row * NPOS, m_score, NPOS))
        b_newer += tl.sum(b_gates, 1)


def logits(tile: int) -> Tensor:
    """Of what every key's position adds; a third of the keys stand at the last position."""
    generator = torch.Generator().manual_seed(9)
    scores, by_position = (torch.randn(ROWS, size, generator=generator) for size in (KEYS, NPOS))
    out = torch.empty(ROWS, KEYS)
    _positions_kernel[(1,)](scores, by_position, out, ROWS, KEYS, NPOS, tile)
    return out


if __name__ == "__main__":
    whole = logits(64)
    print(json.dumps({tile: int((logits(tile) != whole).sum()) for tile in (2, 8, 16, 32)}))

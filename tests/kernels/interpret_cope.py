"""Run every case through the Triton kernels of CoPE, in the interpreter, and print what is wrong with each, as JSON.

Tiles and chunks are small here, so that short requests have many.
"""

from __future__ import annotations

import json

import torch

from posenc_runtime.kernels import chunks, cope_decode, cope_prefill
from posenc_runtime.kernels.cope_attention import cope_attention
from tests.kernels import interpreted_assembly, interpreted_bfloat16, interpreted_calls
from tests.kernels.attention_cases import COPE_CASES, Case, Tensors
from tests.kernels.saturation import walked

TILE = 16


def main() -> None:
    interpreted_bfloat16.mend()
    interpreted_assembly.mend()
    interpreted_calls.mend()
    chunks.TILE, chunks.MIN_CHUNK, cope_decode.MAX_CHUNKS = TILE, 32, 4
    cope_decode.GATED_TILES, cope_decode.SCORES = 2, 400  # room for the scores of few requests
    cope_prefill.ROWS, cope_prefill.GATED_TILE, cope_prefill.GATED_TILES, cope_prefill.TILE = 32, 8, 2, TILE
    cope_prefill.PROGRAMS, cope_prefill.POSITION_LOGITS = 3, 0  # so that one launch does not take them all
    print(json.dumps({name: faults(case) for name, case in COPE_CASES.items()}))


def faults(case: Case) -> list[str]:
    tensors, counts = case.tensors(), torch.zeros(2, dtype=torch.int64)
    cope_attention(
        tensors.query,
        tensors.key_cache,
        tensors.value_cache,
        case.batch(),
        case.cope(),
        case.scale(),
        tensors.out,
        counts,
    )
    return tensors.faults() + miscounted(tensors, *counts.tolist())


def miscounted(tensors: Tensors, gated: int, saturated: int) -> list[str]:
    """A walk learns after a tile or two that all of its rows are saturated, and goes on to where a plain one begins."""
    case, begin, totals = tensors.case, 0, torch.zeros(3, dtype=torch.int64)
    for (_, own), keys in zip(case.requests, tensors.keys, strict=True):
        step = 1 if own == 1 else cope_prefill.ROWS * case.num_kv_heads // case.num_heads
        query = tensors.query[begin : begin + own]
        totals += torch.tensor(walked(query, keys, case.scale(), case.npos, step))
        begin += own
    num_keys, most, walks = totals.tolist()
    if gated + saturated == num_keys and most - 2 * TILE * walks < saturated <= most:
        return []
    return [f"{gated} and {saturated} keys were counted where {most} of {num_keys} stand at the last position"]


if __name__ == "__main__":
    main()

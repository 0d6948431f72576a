"""Run every case through the Triton kernels of CoPE, in the interpreter, and print what is wrong with each, as JSON.

Tiles and chunks are small here, so that short requests have many.
"""

from __future__ import annotations

import json
import math

import torch

from posenc_runtime.kernels.attention import chunk_list, chunks, cope_decode, cope_prefill
from posenc_runtime.kernels.attention.cope_attention import cope_attention
from posenc_runtime.kernels.attention.paged import PagedBatch
from tests.kernels import interpreted_assembly, interpreted_bfloat16, interpreted_calls
from tests.kernels.attention_cases import COPE_CASES, Case, Tensors, one_by_one
from tests.kernels.saturation import walked

TILE = 16


def main() -> None:
    interpreted_bfloat16.mend()
    interpreted_assembly.mend()
    interpreted_calls.mend()
    chunks.TILE, chunks.MIN_CHUNK, cope_decode.MAX_CHUNKS, chunk_list.REQUESTS = TILE, 32, 4, 2
    cope_decode.GATED_TILES, cope_decode.SCORES = 2, 0  # room for the scores of few requests
    cope_decode.SCORE_PROGRAMS, cope_decode.VALUE_PROGRAMS, cope_decode.AGAIN_PROGRAMS = 3, 3, 2
    cope_prefill.ROWS, cope_prefill.GATED_TILE, cope_prefill.GATED_TILES, cope_prefill.TILE = 32, 8, 2, TILE
    cope_prefill.PROGRAMS, cope_prefill.POSITION_LOGITS = 3, 0  # so that one launch does not take them all
    found = {name: faults(case) for name, case in COPE_CASES.items()}
    print(json.dumps(found | {"in another batch": of_company(COPE_CASES["around-a-chunk"])}))


def faults(case: Case) -> list[str]:
    tensors = case.tensors()
    counts = attend(tensors)
    return tensors.faults() + miscounted(tensors, *counts)


def attend(tensors: Tensors, rows: slice = slice(None), batch: PagedBatch | None = None) -> list[int]:
    """Keys that were given positions, and those that stood at the last one."""
    case, counts = tensors.case, torch.zeros(2, dtype=torch.int64)
    cope_attention(
        tensors.query[rows],
        tensors.key_cache,
        tensors.value_cache,
        batch or case.batch(),
        case.cope(),
        case.scale(),
        tensors.out[rows],
        counts,
    )
    return counts.tolist()


def of_company(case: Case) -> list[str]:
    """Whether each request's output is the same alone, where its scores have room, as in its batch, to the bit."""
    tensors, batch = case.tensors(), case.batch()
    attend(tensors)
    together, tensors.out = tensors.out, torch.full_like(tensors.out, math.nan)
    for request, (rows, alone) in enumerate(one_by_one(case, batch)):
        attend(tensors, rows, alone)
        if not torch.equal(tensors.out[rows], together[rows]):
            return [f"the output of request {request} depends on its company"]
    return []


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

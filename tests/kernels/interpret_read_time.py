"""Run every case through the Triton kernels of attention at read time, in the interpreter, and print what is wrong.

Tiles and chunks are small here, so that short requests have many.
"""

from __future__ import annotations

import json
import math

import torch

from posenc_runtime.kernels.attention import (
    chunk_list,
    chunks,
    read_time_decode,
    read_time_prefill,
    read_time_reference,
)
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.read_time_attention import read_time_attention
from tests.kernels import interpreted_bfloat16, interpreted_calls
from tests.kernels.read_time_cases import TRITON_CASES, UNTOUCHED, Tensors
from tests.tolerance import ATTENTION_TIMES_TORCH

TILE = 32


def main() -> None:
    interpreted_bfloat16.mend()
    interpreted_calls.mend()
    chunks.TILE, chunks.MIN_CHUNK, chunks.MAX_CHUNKS = TILE, 64, 4
    read_time_prefill.TILE, read_time_prefill.ROWS = TILE, 32
    read_time_decode.PROGRAMS, chunk_list.REQUESTS = 3, 2
    faults = {name: faults_of(Tensors(case)) for name, case in TRITON_CASES.items()}
    alone = {"in another batch": of_company("every kind"), "only far": of_far_alone("every kind")}
    print(json.dumps(faults | alone))


def faults_of(tensors: Tensors) -> list[str]:
    case = tensors.case
    attend(tensors)
    plain = Tensors(case)
    arguments = (plain.query, plain.key_cache, plain.value_cache, case.batch(), case.read_time(), case.scale)
    read_time_reference.read_time_attention(*arguments, plain.out, plain.logits)
    # A kernel rounds turned queries and weights to the data type, where plain torch keeps them in float32.
    band = torch.finfo(case.dtype).eps * float(tensors.expected.square().mean().sqrt())
    allowed = ATTENTION_TIMES_TORCH * (plain.error() + band)
    found = tensors.error()
    faults = [] if found <= allowed else [f"wrong by {found:.2e} where {allowed:.2e} is allowed"]
    return [*faults, "padding was written"] if tensors.wrote_padding() else faults


def attend(
    tensors: Tensors, rows: slice = slice(None), batch: PagedBatch | None = None, *, only_far: bool = False
) -> None:
    case = tensors.case
    read_time_attention(
        tensors.query[rows],
        tensors.key_cache,
        tensors.value_cache,
        batch or case.batch(),
        case.read_time(),
        case.scale,
        tensors.out[rows],
        tensors.logits,
        only_far=only_far,
    )


def of_company(name: str) -> list[str]:
    """Whether each request's output is the same alone as in its batch, to the bit."""
    tensors = Tensors(TRITON_CASES[name])
    attend(tensors)
    together, tensors.out = tensors.out, torch.full_like(tensors.out, math.nan)
    batch = tensors.case.batch()
    for request, (length, own) in enumerate(tensors.case.requests):
        begin, one = int(batch.query_start_loc[request]), slice(request, request + 1)
        starts = torch.tensor([0, own], dtype=torch.int32)
        alone = PagedBatch(batch.block_table[one], starts, batch.seq_lens[one], own, length)
        attend(tensors, slice(begin, begin + own), alone)
    return [] if torch.equal(tensors.out, together) else ["a request's output depends on its company"]


def of_far_alone(name: str) -> list[str]:
    """Whether queries past the trained length get the same bits where the others are left out, which stay unwritten."""
    tensors = Tensors(TRITON_CASES[name])
    attend(tensors)
    case, expected = tensors.case, tensors.out.clone()
    begin = 0
    for length, own in case.requests:
        near = max(0, min(own, case.method.trained - (length - own)))
        expected[begin : begin + near] = UNTOUCHED
        begin += own
    faults = []
    for kind, attention in (("kernel", read_time_attention), ("reference", read_time_reference.read_time_attention)):
        tensors.out = torch.full_like(tensors.out, UNTOUCHED)
        given = (tensors.query, tensors.key_cache, tensors.value_cache, case.batch(), case.read_time(), case.scale)
        attention(*given, tensors.out, tensors.logits, only_far=True)
        is_same = torch.equal(tensors.out, expected) if kind == "kernel" else _leaves_as(tensors.out, expected)
        faults += [] if is_same else [f"the {kind} wrote other rows, or other bits"]
    return faults


def _leaves_as(out: torch.Tensor, expected: torch.Tensor) -> bool:
    left, expected_left = ((tensor == UNTOUCHED).all(-1) for tensor in (out, expected))
    return torch.equal(left, expected_left)


if __name__ == "__main__":
    main()

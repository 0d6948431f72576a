"""Run every case through the Triton kernels of biased attention, in the interpreter, and print what is wrong with each.

Tiles and chunks are small here, so that short requests have many.
"""

from __future__ import annotations

import json
import math

import torch

from posenc_runtime.kernels.attention import bias_decode, bias_prefill, chunk_list, chunks, window, window_plan
from posenc_runtime.kernels.attention.bias_attention import bias_attention
from posenc_runtime.kernels.attention.paged import PagedBatch
from tests.kernels import interpreted_bfloat16, interpreted_calls
from tests.kernels.attention_cases import BIAS_CASES, Case, Tensors, one_by_one

TILE = 16


def main() -> None:
    interpreted_bfloat16.mend()
    interpreted_calls.mend()
    chunks.TILE, chunks.MIN_CHUNK, chunks.MAX_CHUNKS = TILE, 32, 4
    bias_prefill.TILE, bias_prefill.ROWS = TILE, 32
    bias_decode.PROGRAMS, chunk_list.REQUESTS = 3, 2
    window_plan._WARPS_OF_FEW, window_plan._BLOCKS, window_plan._NORMS = 1, 4, 8  # so that norms are read in turns
    faults = {name: faults_of(case) for name, case in BIAS_CASES.items()}
    in_company = [
        fault
        for name in ("window-log", "more-keys-than-the-smallest-chunks-hold", "around-a-chunk")
        for fault in of_company(name)
    ]
    print(json.dumps(faults | {"in another batch": in_company}))


def faults_of(case: Case) -> list[str]:
    tensors = case.tensors()
    counts = attend(tensors)
    faults = tensors.faults()
    if case.tolerance is not None and (expected := blocks(tensors)) != counts:
        faults.append(f"blocks read and skipped are {counts} where {expected} are expected")
    return faults


def attend(tensors: Tensors, rows: slice = slice(None), batch: PagedBatch | None = None) -> list[int]:
    """Blocks read and skipped."""
    case, counts = tensors.case, torch.zeros(2, dtype=torch.int64)
    keep = None if case.tolerance is None else window.Window(tensors.key_norms, case.tolerance, counts)
    bias_attention(
        tensors.query[rows],
        tensors.key_cache,
        tensors.value_cache,
        batch or case.batch(),
        case.form(),
        case.scale(),
        tensors.out[rows],
        keep,
    )
    assert keep is None or not keep.num_items.any(), "the next step would begin with what this one read"
    return counts.tolist()


def blocks(tensors: Tensors) -> list[int]:
    """What is read and skipped by the reference, of each tile of queries and each KV head.

    The kernels know one largest norm, of all keys of a request, and so does the reference when every norm is that one.
    """
    case, batch = tensors.case, tensors.case.batch()
    if case.bias in ("flat", "table"):
        return [0, 0]
    assert case.tolerance is not None
    norms = tensors.key_norms.clone()
    for own, (length, _) in zip(batch.block_table, case.requests, strict=True):
        of_request = own[: -(-length // case.block_size)].long()
        entries = norms[of_request].transpose(0, 1).flatten(1)[:, :length]
        norms[of_request] = entries.amax(1)[None, :, None]
    keep = window.Window(norms, case.tolerance, torch.zeros(2, dtype=torch.int64))
    key_cache = tensors.key_cache.nan_to_num()
    first = window.first_keys(tensors.query, key_cache, batch, case.form(), case.scale(), keep)
    group = case.num_heads // case.num_kv_heads
    first = first.unflatten(1, (case.num_kv_heads, group)).amin(2)
    read = skipped = begin = 0
    for length, own in case.requests:
        step = 1 if own == 1 else bias_prefill.ROWS // group
        for query in range(0, own, step):
            last = length - own + min(query + step, own) - 1
            for tile_first in first[begin + query : begin + min(query + step, own)].amin(0).tolist():
                unread = tile_first // TILE * TILE // case.block_size
                skipped += unread
                read += last // case.block_size + 1 - unread
        begin += own
    return [read, skipped]


def of_company(name: str) -> list[str]:
    """Whether each request's output is the same alone as in its batch, to the bit."""
    tensors = BIAS_CASES[name].tensors()
    attend(tensors)
    together, tensors.out = tensors.out, torch.full_like(tensors.out, math.nan)
    for rows, alone in one_by_one(tensors.case, tensors.case.batch()):
        attend(tensors, rows, alone)
    return [] if torch.equal(tensors.out, together) else ["a request's output depends on its company"]


if __name__ == "__main__":
    main()

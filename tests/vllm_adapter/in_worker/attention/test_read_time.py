"""A step's queries, divided at the trained length."""

from __future__ import annotations

import pytest
import torch

from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.vllm_adapter.in_worker.attention.read_time import Part, divide

TRAINED = 10

# By name: of each request, queries of this step and tokens; then, of near and far queries, rows, numbers and lengths.
STEPS: dict[str, tuple[list[tuple[int, int]], tuple[list[int], list[int], list[int]] | None, object]] = {
    "all below": ([(3, 3), (1, 10)], ([0, 1, 2, 3], [3, 1], [3, 10]), None),
    "the first past it": ([(1, 11)], None, ([0], [1], [11])),
    "a prefill across it": ([(6, 13)], ([0, 1, 2], [3], [10]), ([3, 4, 5], [3], [13])),
    "a prefill that ends at it": ([(6, 10)], ([0, 1, 2, 3, 4, 5], [6], [10]), None),
    "a mixed batch": (
        [(1, 4), (2, 30), (4, 12), (1, 9)],
        ([0, 3, 4, 7], [1, 2, 1], [4, 10, 9]),
        ([1, 2, 5, 6], [2, 2], [30, 12]),
    ),
    "a request without queries": ([(0, 20), (1, 5)], ([0], [1], [5]), None),
}


@pytest.mark.parametrize("name", STEPS)
def test_queries_below_the_trained_length_are_near_and_the_others_far(name: str) -> None:
    requests, near, far = STEPS[name]
    counts, lengths = zip(*requests, strict=True)
    table = torch.arange(4 * len(requests), dtype=torch.int32).view(-1, 4)
    begins = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    batch = PagedBatch(table, begins, torch.tensor(lengths, dtype=torch.int32), max(counts), max(lengths))
    parts = divide(batch, TRAINED)
    assert (described(parts.near), described(parts.far)) == (near, far)
    for part in filter(None, (parts.near, parts.far)):
        requests_of_rows = torch.bucketize(part.rows, begins[1:].long(), right=True).unique_consecutive()
        assert torch.equal(part.batch.block_table, table[requests_of_rows])
        assert part.batch.max_query_len == int(part.batch.query_start_loc.diff().max())
        assert part.batch.max_seq_len == int(part.batch.seq_lens.max())


def described(part: Part | None) -> tuple[list[int], list[int], list[int]] | None:
    if part is None:
        return None
    return part.rows.tolist(), part.batch.query_start_loc.diff().tolist(), part.batch.seq_lens.tolist()


def test_rows_that_lie_together_are_a_view_and_others_a_copy() -> None:
    tensor = torch.arange(12).view(6, 2)
    batch = PagedBatch(*(torch.zeros(1, 1, dtype=torch.int32),) * 3, 1, 1)
    together, apart = Part(torch.tensor([2, 3, 4]), batch), Part(torch.tensor([0, 3]), batch)
    assert together.of(tensor).data_ptr() == tensor[2].data_ptr() and torch.equal(together.of(tensor), tensor[2:5])
    assert torch.equal(apart.of(tensor), tensor[[0, 3]])

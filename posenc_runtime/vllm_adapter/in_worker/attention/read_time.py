"""The parts of attention that turns queries, for all devices: which queries turn, and what a layer does to logits.

Those below the trained length go to vLLM's attention, the others to ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.read_time import LayerLogits


@dataclasses.dataclass(frozen=True)
class Part:
    """Queries of a step, as a batch of their own.

    Attributes:
        rows: int64 ``[num_queries]``, where the queries are among those of the step.
        batch: the requests that have such queries, each as long as its last query sees.
    """

    rows: Tensor
    batch: PagedBatch

    def of(self, tensor: Tensor) -> Tensor:
        """The rows of a step's tensor that belong to this part; a view where they lie together."""
        first, last = int(self.rows[0]), int(self.rows[-1])
        if last - first + 1 == len(self.rows):
            return tensor[first : last + 1]
        return tensor[self.rows]


@dataclasses.dataclass(frozen=True)
class Parts:
    """A step's queries at positions below the trained length, and at others. None where there are none."""

    near: Part | None
    far: Part | None


def divide(batch: PagedBatch, trained_length: int) -> Parts:
    """Divide the queries of a step. A prefill that reaches past the trained length is in both parts.

    Args:
        batch: all requests, on the CPU.
        trained_length: tokens; a query at this position or a later one is far.
    """
    begins, lengths = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    near: list[tuple[int, int, int, int]] = []  # request, first row, number of queries, length
    far: list[tuple[int, int, int, int]] = []
    for request, length in enumerate(lengths):
        begin, end = begins[request], begins[request + 1]
        first_position = length - (end - begin)
        num_near = min(max(trained_length - first_position, 0), end - begin)
        if num_near:
            near.append((request, begin, num_near, first_position + num_near))
        if num_near < end - begin:
            far.append((request, begin + num_near, end - begin - num_near, length))
    return Parts(_part(near, batch), _part(far, batch))


def layer_logits(impl: Any, k_scale: Tensor | None, v_scale: Tensor | None) -> LayerLogits:
    """What a layer does to logits.

    Args:
        impl: vLLM's implementation of its attention, which writes no soft cap as 0.
        k_scale, v_scale: of an 8-bit cache, as ``LayerLogits`` takes them; None for another cache.
    """
    sinks = None if impl.sinks is None else impl.sinks.detach().float().contiguous()
    return LayerLogits(sinks=sinks, soft_cap=impl.logits_soft_cap, k_scale=k_scale, v_scale=v_scale)


def _part(chosen: Sequence[tuple[int, int, int, int]], batch: PagedBatch) -> Part | None:
    if not chosen:
        return None
    requests, begins, counts, lengths = zip(*chosen, strict=True)
    return Part(
        torch.cat([torch.arange(begin, begin + count) for begin, count in zip(begins, counts, strict=True)]),
        PagedBatch(
            batch.block_table[list(requests)],
            torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32),
            torch.tensor(lengths, dtype=torch.int32),
            max(counts),
            max(lengths),
        ),
    )

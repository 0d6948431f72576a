"""What a step's queries read: the requests of a batch and where their keys and values lie."""

from __future__ import annotations

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True)
class PagedBatch:
    """Requests whose keys lie in blocks. The queries of a request are its last tokens, and their keys are cached.

    Attributes:
        block_table: int32 ``[num_requests, max_blocks]``, the physical blocks of each request in order; what stands
            past a request's last block is never read.
        query_start_loc: int32 ``[num_requests + 1]``, where in the queries each request's begin.
        seq_lens: int32 ``[num_requests]``, tokens of each request, those of this step included.
        max_query_len: at least the largest number of queries of a request; of a lone request, its number.
        max_seq_len: at least the largest of ``seq_lens``.
    """

    block_table: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    max_query_len: int
    max_seq_len: int

    def __len__(self) -> int:
        return self.seq_lens.numel()

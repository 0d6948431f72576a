"""The requests of a batch, and where their keys and values lie in the paged cache."""

from __future__ import annotations

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True)
class PagedBatch:
    """Requests whose keys lie in blocks. The queries of a request are its last tokens; their keys are cached already.

    Attributes:
        block_table: int32 ``[num_requests, max_blocks]``, the physical blocks of each request in order. Entries after a
            request's last block are never read.
        query_start_loc: int32 ``[num_requests + 1]``, the index of each request's first query, and the end of the last.
        seq_lens: int32 ``[num_requests]``, tokens of each request, with those of this step.
        max_query_len: at least the largest number of queries of a request. If there is one request, exactly its number.
        max_seq_len: at least the largest of ``seq_lens``.
    """

    block_table: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    max_query_len: int
    max_seq_len: int

    def __len__(self) -> int:
        return self.seq_lens.numel()

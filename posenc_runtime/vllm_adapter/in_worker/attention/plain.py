"""Attention in plain torch over a paged cache, for encodings without a kernel: request by request."""

from __future__ import annotations

from torch import Tensor

from posenc_runtime.decoder.attention import summed_in
from posenc_runtime.decoder.encoding import PositionEncoding
from posenc_runtime.decoder.places import places
from posenc_runtime.kernels.attention.paged import PagedBatch


def attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    position: PositionEncoding,
    scale: float,
    out: Tensor,
) -> None:
    """Compute attention with an encoding's own ``attend`` over a paged cache, request by request.

    Args:
        query: ``[num_tokens, num_heads, head_dim]``; tokens after those of the last request are padding.
        key_cache, value_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``, at any strides.
        out: ``[num_tokens, num_heads, head_dim]``, written; rows of padding are left as they are.
    """
    block_size = key_cache.shape[2]
    begins, lengths = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    for request, length in enumerate(lengths):
        rows = slice(begins[request], begins[request + 1])
        blocks = batch.block_table[request, : -(-length // block_size)].long()
        keys, values = (
            cache[blocks].transpose(0, 1).flatten(1, 2)[None, :, :length] for cache in (key_cache, value_cache)
        )
        num_queries = rows.stop - rows.start
        here = places(length - num_queries, num_queries, None, query.device)
        prepared = position.prepare(here, summed_in(query.dtype))
        found = position.attend(query[rows].transpose(0, 1)[None], keys, values, here, prepared, scale)
        out[rows] = found[0].transpose(0, 1).to(out.dtype)

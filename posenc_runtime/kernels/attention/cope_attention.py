"""Attention with contextual positions on CUDA: chooses the kernels, in the same way as ``bias_attention``."""

from __future__ import annotations

from torch import Tensor

from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.cope_decode import decode
from posenc_runtime.kernels.attention.cope_prefill import prefill
from posenc_runtime.kernels.attention.launch import arguments
from posenc_runtime.kernels.attention.paged import PagedBatch


def cope_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    cope: Cope,
    scale: float,
    out: Tensor,
    counts: Tensor | None = None,
) -> None:
    """See ``attention_reference.cope_attention``. All tensors are on one CUDA device.

    Raises:
        ValueError: when data types, strides or heads do not fit, or the table is not contiguous or differs from the
            queries in data type or head_dim.
    """
    given = arguments(query, key_cache, value_cache, batch, out)
    pos_emb = cope.pos_emb
    if pos_emb.dtype != query.dtype or pos_emb.shape[0] != query.shape[2] or not pos_emb.is_contiguous():
        raise ValueError(
            f"pos_emb must be contiguous, {query.dtype} and have {query.shape[2]} rows, got {pos_emb.dtype} "
            f"{list(pos_emb.shape)} and strides {pos_emb.stride()}"
        )
    if not len(batch) or not query.shape[0]:
        return
    if batch.max_query_len > 1:
        prefill(query, key_cache, value_cache, batch, cope, scale, out, counts, given)
    if batch.max_query_len == 1 or len(batch) > 1:
        decode(query, key_cache, value_cache, batch, cope, scale, out, counts, given)

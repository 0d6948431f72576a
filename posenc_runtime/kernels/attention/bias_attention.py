"""Attention with a distance bias on CUDA: chooses the kernels and their order.

For a request of one query, several programs share its keys (decode kernels). For a request of several queries, several
programs share its queries (prefill kernel). Each kernel skips the requests of the other kind. A step with both kinds
launches both, because the host does not know which request is of which kind. Launches depend only on the shapes of the
tensors and on ``max_query_len`` and ``max_seq_len``, and never wait for the device, so a CUDA graph can capture them.
"""

from __future__ import annotations

from torch import Tensor

from posenc_runtime.encodings.distance import BiasForm, Flat, Table
from posenc_runtime.kernels.attention.bias_decode import decode
from posenc_runtime.kernels.attention.bias_forms import form_arguments
from posenc_runtime.kernels.attention.bias_prefill import prefill
from posenc_runtime.kernels.attention.launch import arguments
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.window import Window
from posenc_runtime.kernels.attention.window_plan import plan


def bias_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    form: BiasForm,
    scale: float,
    out: Tensor,
    window: Window | None = None,
) -> None:
    """See ``attention_reference.bias_attention``. All tensors are on one CUDA device, the form's, too.

    Flat and Table forms reach every distance. For them a window changes nothing and counts nothing.

    Raises:
        ValueError: when data types, strides, heads or the form do not fit.
    """
    of_tensors = arguments(query, key_cache, value_cache, batch, out)
    if not len(batch) or not query.shape[0]:
        return
    if isinstance(form, Flat | Table):
        window = None
    given = form_arguments(form, query.shape[1], query.device) | of_tensors
    found = None
    if window is not None:
        found = plan(query, key_cache, batch, scale, window, given)
    if batch.max_query_len > 1:
        prefill(query, key_cache, value_cache, batch, scale, out, window, found, given)
    decode(query, key_cache, value_cache, batch, scale, out, found, given)

"""Attention at read time on CUDA: chooses the kernels, as ``bias_attention`` does for biases."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from posenc_runtime.kernels.attention import chunks
from posenc_runtime.kernels.attention.launch import arguments, in_base_2
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.kernels.attention.read_time import PLAIN, LayerLogits, ReadTime, check
from posenc_runtime.kernels.attention.read_time_decode import decode
from posenc_runtime.kernels.attention.read_time_prefill import prefill


def read_time_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    read_time: ReadTime,
    scale: float,
    out: Tensor,
    logits: LayerLogits = PLAIN,
    *,
    only_far: bool = False,
) -> None:
    """See ``read_time_reference.read_time_attention``. All tensors are on one CUDA device.

    Launches depend only on the shapes of the tensors and on ``max_query_len`` and ``max_seq_len``, and never wait for
    the device, so a CUDA graph can capture those of a batch with lone queries.

    Raises:
        ValueError: see ``read_time.check`` and ``launch.arguments``; or when a page is no multiple of the keys that a
            program takes at a time.
    """
    check(query, key_cache, value_cache, batch, read_time, out, logits)
    if read_time.pages.page % chunks.TILE:
        raise ValueError(
            f"a page must be a multiple of {chunks.TILE} tokens for the kernels on CUDA, got {read_time.pages.page}"
        )
    of_tensors = arguments(query, key_cache, value_cache, batch, out, eight_bits=True)
    if not len(batch) or not query.shape[0]:
        return
    given = of_tensors | _of_layer(read_time, scale, logits)
    if batch.max_query_len > 1:
        prefill(query, key_cache, value_cache, batch, out, given, only_far=only_far)
    after = read_time.pages.trained_length if only_far else None
    decode(query, key_cache, value_cache, batch, out, given, after)


def _of_layer(read_time: ReadTime, scale: float, logits: LayerLogits) -> dict[str, Any]:
    pages = read_time.pages
    scales = {}
    for name, given in (("p_k_scales", logits.k_scale), ("p_v_scales", logits.v_scale)):
        scales[name] = given
    one_of_each = {given.numel() for given in scales.values() if given is not None}
    if len(one_of_each) > 1:
        raise ValueError(f"k_scale and v_scale must have as many elements as each other, got {sorted(one_of_each)}")
    return {
        "p_phases": read_time.phases,
        "p_sinks": logits.sinks,
        **scales,
        "stride_scales": int(one_of_each != {1}),
        "scale": scale if logits.soft_cap else in_base_2(scale),
        "soft_cap": logits.soft_cap,
        "trained_length": pages.trained_length,
        "page": pages.page,
        "edge": pages.edge,
        "distance": pages.distance,
        "leaks_from": pages.turns[-1].distance,
        "bounded_from": pages.bounded_from,
        "tempered_from": pages.tempered_from,
        "log_tempered_from": math.log(pages.tempered_from),
        "TEMPERATURE": pages.temperature,
        "CAPPED": bool(logits.soft_cap),
        "HALF": read_time.phases.shape[1],
        "IS_NEOX": read_time.is_neox_style,
    }

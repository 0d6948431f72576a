"""Attention in plain torch, as functions that position encodings combine. Sums are taken in at least float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def summed_in(dtype: torch.dtype) -> torch.dtype:
    """The data type in which numbers of ``dtype`` are summed: float64 for float64, float32 for all others."""
    return torch.promote_types(dtype, torch.float32)


def exact(tensor: Tensor) -> Tensor:
    return tensor.to(summed_in(tensor.dtype))


def scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """``scale q.k``. Query head h reads KV head ``h // (num_heads // num_kv_heads)``.

    Args:
        query: ``[batch, num_heads, num_queries, head_dim]``.
        key: ``[batch, num_kv_heads, num_keys, head_dim]``.

    Returns:
        ``[batch, num_heads, num_queries, num_keys]``.
    """
    return exact(query) @ _of_query_heads(exact(key), query.shape[1]).transpose(-1, -2) * scale


def weights(logits: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the visible keys.

    Args:
        logits: ``[batch, num_heads, num_queries, num_keys]``.
        visible: bool ``[batch or 1, num_queries, num_keys]``.
    """
    return logits.masked_fill(~visible[:, None], -math.inf).softmax(-1)


def mixed(weight: Tensor, value: Tensor) -> Tensor:
    """The weighted sum of the values.

    Args:
        weight: ``[batch, num_heads, num_queries, num_keys]``.
        value: ``[batch, num_kv_heads, num_keys, head_dim]``.

    Returns:
        ``[batch, num_heads, num_queries, head_dim]``.
    """
    return weight @ _of_query_heads(exact(value), weight.shape[1])


def attention(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float, bias: Tensor | None = None
) -> Tensor:
    """``softmax(scale q.k + bias) v`` over the visible keys.

    Args:
        query: ``[batch, num_heads, num_queries, head_dim]``.
        key, value: ``[batch, num_kv_heads, num_keys, head_dim]``.
        visible: bool ``[batch or 1, num_queries, num_keys]``.
        bias: ``[batch or 1, num_heads, num_queries, num_keys]``.

    Returns:
        In query's shape, in at least float32.
    """
    logits = scores(query, key, scale)
    return mixed(weights(logits if bias is None else logits + bias, visible), value)


def at_distance(by_distance: Tensor, distance: Tensor) -> Tensor:
    """Look up, for each query and key, the query's entry for the distance of the key.

    Args:
        by_distance: ``[batch, num_heads, num_queries, num_distances]``.
        distance: int64 ``[batch or 1, num_queries, num_keys]``, below ``num_distances``.

    Returns:
        ``[batch, num_heads, num_queries, num_keys]``.
    """
    return by_distance.gather(-1, for_each_head(distance, by_distance))


def for_each_head(distance: Tensor, like: Tensor) -> Tensor:
    """``[batch or 1, num_queries, num_keys]`` expanded to ``[batch, num_heads, num_queries, num_keys]``."""
    return distance[:, None].expand(*like.shape[:-1], distance.shape[-1])


def _of_query_heads(heads: Tensor, num_heads: int) -> Tensor:
    return heads.repeat_interleave(num_heads // heads.shape[1], dim=1)

"""Positions at read time: paged ReRoPE, its leaky form, and dual chunk attention, by the distance of each pair.

ReRoPE (Su 2023, kexue.fm/archives/9708) has the distance i - j within a window w, and w beyond it; leaky ReRoPE has
w + (i - j - w) / k beyond it. Both are taken by pages here: the keys of a page are as far from each other as they were
trained. Distances that grow end below the trained length. Dual chunk attention (An et al. 2024, arXiv:2402.17463,
section 3.2) is transcribed as it is written: keys at j mod s, and three positions of each query. Queries below the
trained length are plain RoPE.

A score is the product of the query, turned by the distance, with the key, which is not turned at all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from tests.references.attention import causal_attention

# (query's position, key's position) -> tokens.
Distance = Callable[[int, int], Fraction | int]

# query's position -> factor of its logits.
Factor = Callable[[int], float]


def rerope_distance(trained: int, window: int, page: int, leak: Fraction | None = None) -> Distance:
    def distance(i: int, j: int) -> Fraction | int:
        place_in_page = j % page
        if i < trained or j // page >= (i - window + 1) // page:
            return i - j
        if leak is None:
            return window - place_in_page
        leaky = window + (i - window - (j - place_in_page)) / leak
        return min(leaky, trained - 1) - place_in_page

    return distance


def dual_chunk_distance(trained: int, chunk_size: int, local_size: int) -> Distance:
    s = chunk_size - local_size

    def distance(i: int, j: int) -> int:
        if i < trained:
            return i - j
        key = j % s
        if i // s == j // s:
            return i % s - key
        if i // s - j // s == 1:
            return min(s + i % s, chunk_size) - key
        return chunk_size - key

    return distance


def no_factor(i: int) -> float:
    return 1.0


def logn_factor(trained: int, length: int) -> Factor:
    return lambda i: max(1.0, math.log(i + 1, length)) if i >= trained else 1.0


def yarn_factor(trained: int, length: int) -> Factor:
    return lambda i: max(1.0, 1 + math.log((i + 1) / length) / 10) ** 2 if i >= trained else 1.0


def read_time_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    inv_freq: Tensor,
    distance: Distance,
    factor: Factor,
    *,
    is_neox_style: bool,
    sinks: Tensor | None = None,
    soft_cap: float = 0.0,
) -> Tensor:
    """Attention of un-rotated queries and keys.

    Args:
        inv_freq: radians per token of each pair; dimensions beyond twice their number are left alone.
        sinks: a logit of each head that takes part in the softmax and has no value.
        soft_cap: scores s become ``soft_cap * tanh(s / soft_cap)``; 0 for none.
    """

    @functools.lru_cache(maxsize=512)
    def row(position: int) -> Tensor:
        return torch.tensor([float(distance(position, j)) for j in range(position + 1)], dtype=torch.float64)

    def score(head: int, position: int, one: Tensor, keys: Tensor) -> Tensor:
        away = row(position)
        scores = (turned(one, away, inv_freq, is_neox_style) * keys).sum(-1) * scale * factor(position)
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        return scores

    if sinks is None:
        return causal_attention(query, key, value, score)
    outputs = torch.empty(*query.shape[:2], value.shape[-1], dtype=torch.float64)
    group = query.shape[1] // key.shape[1]
    for head in range(query.shape[1]):
        for index in range(len(query)):
            position = len(key) - len(query) + index
            seen = slice(0, position + 1)
            logits = score(head, position, query[index, head], key[seen, head // group])
            weights = torch.softmax(torch.cat((logits, sinks[head : head + 1])), -1)[:-1]
            outputs[index, head] = weights @ value[seen, head // group]
    return outputs


def turned(one: Tensor, away: Tensor, inv_freq: Tensor, is_neox_style: bool) -> Tensor:
    """A vector turned by each of several distances, ``[num_distances, head_dim]``."""
    rows = one.repeat(len(away), 1)
    pairs = torch.arange(len(inv_freq))
    first, second = (pairs, pairs + len(inv_freq)) if is_neox_style else (2 * pairs, 2 * pairs + 1)
    angle = torch.outer(away, inv_freq)
    cos, sin = torch.cos(angle), torch.sin(angle)
    rows[:, first] = one[first] * cos - one[second] * sin
    rows[:, second] = one[first] * sin + one[second] * cos
    return rows

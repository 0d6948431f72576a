"""How many keys stand at CoPE's last position, in float64 and key by key."""

from __future__ import annotations

import torch
from torch import Tensor


def walked(query: Tensor, keys: Tensor, scale: float, npos: int, step: int) -> tuple[int, int, int]:
    """Of one request, over the tiles of `step` queries and the KV heads.

    Args:
        query: ``[num_queries, num_heads, head_dim]``, the last of the request's tokens.
        keys: ``[num_keys, num_kv_heads, head_dim]``.

    Returns:
        Keys that are walked, those of them with the last position for every row of their tile, and the walks.
    """
    num_keys, saturated, walks = 0, 0, 0
    past = len(keys) - len(query)
    for kv_head in range(keys.shape[1]):
        group = slice(kv_head * query.shape[1] // keys.shape[1], (kv_head + 1) * query.shape[1] // keys.shape[1])
        for first in range(0, len(query), step):
            rows = torch.arange(first, min(first + step, len(query)))
            scores = torch.einsum("qhd,kd->qhk", query[rows, group].double(), keys[:, kv_head].double()) * scale
            gates = torch.sigmoid(scores) * (torch.arange(len(keys)) <= past + rows[:, None])[:, None]
            newer = gates.flip(-1).cumsum(-1).flip(-1) - gates
            num_keys += past + int(rows[-1]) + 1
            saturated += int((newer >= npos - 1).all(0).all(0).sum())
            walks += 1
    return num_keys, saturated, walks

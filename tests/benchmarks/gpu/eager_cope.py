"""CoPE as the listing in the paper's appendix writes it, in torch: what one would run without a kernel.

Golovneva et al. 2024, arXiv:2405.18719. Products and weights are of the data type that it is given, positions float32.
The heads of one KV head are taken at a time: the tables of all of them do not fit into a GPU's memory much beyond 8,192
tokens, and each step is long enough for launches not to matter.
"""

from __future__ import annotations

import torch
from torch import Tensor


def eager_cope(query: Tensor, keys: Tensor, values: Tensor, pos_emb: Tensor, scale: float, out: Tensor) -> None:
    """Causal attention of one prompt.

    Args:
        query, out: ``[num_tokens, num_heads, head_dim]``.
        keys, values: ``[num_tokens, num_kv_heads, head_dim]``.
        pos_emb: ``[head_dim, npos]``; multiplied with unscaled queries.
    """
    num_tokens, num_kv_heads, _ = keys.shape
    group = query.shape[1] // num_kv_heads
    future = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=query.device).triu(1)
    for kv_head in range(num_kv_heads):
        heads = slice(kv_head * group, (kv_head + 1) * group)
        q = query[:, heads].transpose(0, 1)
        logits = (q @ keys[:, kv_head].T * scale).masked_fill(future, float("-inf"))
        gates = torch.sigmoid(logits.float())
        positions = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=pos_emb.shape[1] - 1)
        above, below = positions.ceil().long(), positions.floor().long()
        of_entries = q @ pos_emb
        weight = (positions - below).to(logits.dtype)
        logits += of_entries.gather(-1, above) * weight + of_entries.gather(-1, below) * (1 - weight)
        out[:, heads] = (logits.softmax(-1) @ values[:, kv_head]).transpose(0, 1)

"""Transformer-XL's relative positions (Dai et al. 2019, arXiv:1901.02860, section 3.3), without its recurrence.

A score is ``(q + u).k + (q + v).(W R_d)``, times the same scale as in every encoding. R_d is the sinusoid of distance d
with ``hidden_size`` columns, all sines before all cosines as in the authors' repository (kimiyoung/transformer-xl). W
projects R_d to one vector for each KV head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization

from posenc_runtime.decoder.attention import at_distance, exact, mixed, scores, weights
from posenc_runtime.decoder.encoding import PositionEncoding, Prepared
from posenc_runtime.decoder.places import Places
from posenc_runtime.decoder.rules import require_even
from posenc_runtime.decoder.sinusoids import angles


class TransformerXl(PositionEncoding):
    """Scores by content plus scores by distance. Each layer has its own weights.

    Weights, of each layer:
        u, v: ``[num_heads, head_dim]``.
        r_proj.weight: the paper's ``W_k,R``, ``[num_kv_heads * head_dim, hidden_size]``.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.u = nn.Parameter(torch.empty(config.num_attention_heads, config.head_dim))
        self.v = nn.Parameter(torch.empty(config.num_attention_heads, config.head_dim))
        self.r_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=False)
        self.initializer_range: float = config.initializer_range

    @classmethod
    def check(cls, config: Any) -> None:
        require_even("hidden_size", config.hidden_size, "half of the elements are sines, and half are cosines")

    @classmethod
    def is_shared(cls, config: Any) -> bool:
        return False

    def initialize(self) -> None:
        initialization.normal_(self.u, std=self.initializer_range)
        initialization.normal_(self.v, std=self.initializer_range)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, places: Places, prepared: Prepared, scale: float
    ) -> Tensor:
        u, v = self.u[self.heads], self.v[self.heads]
        of_heads = self.r_proj.weight.view(-1, key.shape[-1], self.r_proj.in_features)
        projection = of_heads[self.kv_heads].flatten(0, 1)
        return transformer_xl_attention(query, key, value, places.visible, places.distance, u, v, projection, scale)


def transformer_xl_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    distance: Tensor,
    u: Tensor,
    v: Tensor,
    projection: Tensor,
    scale: float,
) -> Tensor:
    """Attention with content and position scores.

    Args:
        query: ``[batch, num_heads, num_queries, head_dim]``.
        key, value: ``[batch, num_kv_heads, num_keys, head_dim]``.
        visible: bool ``[batch or 1, num_queries, num_keys]``.
        distance: int64, in visible's shape.
        u, v: ``[num_heads, head_dim]``.
        projection: ``[num_kv_heads * head_dim, hidden_size]``.

    Returns:
        In query's shape, in at least float32.
    """
    content = scores(exact(query) + exact(u)[:, None], key, scale)
    angle = angles(torch.arange(key.shape[2], device=key.device), projection.shape[1])  # rad
    sinusoid = torch.cat((angle.sin(), angle.cos()), dim=-1).to(content.dtype)  # [num_distances, hidden_size]
    keys_of_distances = (sinusoid @ projection.to(content.dtype).T).view(key.shape[2], key.shape[1], -1).transpose(0, 1)
    by_distance = scores(exact(query) + exact(v)[:, None], keys_of_distances[None], scale)
    return mixed(weights(content + at_distance(by_distance, distance), visible), value)


ENCODING = TransformerXl

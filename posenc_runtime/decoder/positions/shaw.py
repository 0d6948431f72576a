"""Relative embeddings of keys and values (Shaw et al. 2018, arXiv:1803.02155, section 3), shared by a layer's heads.

The paper's tables have ``2 k + 1`` rows, for keys before and after the query. A decoder's query reads no key after it,
so these tables have ``k + 1`` rows: row d is the paper's ``w_-d``. The last row is for all keys at least k tokens back.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from posenc_runtime.decoder.attention import at_distance, exact, for_each_head, mixed, scores, weights
from posenc_runtime.decoder.encoding import PositionEncoding, Prepared
from posenc_runtime.decoder.places import Places
from posenc_runtime.decoder.rules import require_whole


class Shaw(PositionEncoding):
    """Learned embeddings of the distance: one is added to the key, one to the value. Each layer has its own tables.

    Settings:
        max_relative_position: the paper's k, tokens; 16 there.

    Weights:
        key_embeddings.weight, value_embeddings.weight: ``[max_relative_position + 1, head_dim]``, of each layer.
    """

    defaults: ClassVar = {"max_relative_position": 16}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.key_embeddings = nn.Embedding(config.max_relative_position + 1, config.head_dim)
        self.value_embeddings = nn.Embedding(config.max_relative_position + 1, config.head_dim)

    @classmethod
    def check(cls, config: Any) -> None:
        require_whole("max_relative_position", config.max_relative_position, 1)

    @classmethod
    def is_shared(cls, config: Any) -> bool:
        return False

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, places: Places, prepared: Prepared, scale: float
    ) -> Tensor:
        of_keys, of_values = self.key_embeddings.weight, self.value_embeddings.weight
        return shaw_attention(query, key, value, places.visible, places.distance, of_keys, of_values, scale)


def shaw_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    distance: Tensor,
    key_embeddings: Tensor,
    value_embeddings: Tensor,
    scale: float,
) -> Tensor:
    """``softmax(scale q.(k + a_d)) (v + b_d)`` for keys d tokens back. d is clipped to the last row of the tables.

    Args:
        query: ``[batch, num_heads, num_queries, head_dim]``.
        key, value: ``[batch, num_kv_heads, num_keys, head_dim]``.
        visible: bool ``[batch or 1, num_queries, num_keys]``.
        distance: int64, in visible's shape.
        key_embeddings, value_embeddings: a and b, ``[num_distances, head_dim]``.

    Returns:
        In query's shape, in at least float32.
    """
    # Rows beyond the longest distance are cut off: sums over a long table would cost more than attention.
    num_distances = min(key_embeddings.shape[0], visible.shape[-1])
    key_embeddings, value_embeddings = key_embeddings[:num_distances], value_embeddings[:num_distances]
    clipped = distance.clamp(max=num_distances - 1)
    content = scores(query, key, scale)
    by_distance = exact(query) @ key_embeddings.to(content.dtype).T * scale
    weight = weights(content + at_distance(by_distance, clipped), visible)
    # Weights of equal distances are summed first: one value embedding for every pair of tokens would not fit in memory.
    of_distance = weight.new_zeros(*weight.shape[:-1], key_embeddings.shape[0])
    of_distance = of_distance.scatter_add(-1, for_each_head(clipped, weight), weight)
    return mixed(weight, value) + of_distance @ value_embeddings.to(weight.dtype)


ENCODING = Shaw

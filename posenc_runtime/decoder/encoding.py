"""What a position encoding is to the decoder: its settings, its weights, and where it takes a hand in attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from posenc_runtime.decoder.attention import attention, summed_in
from posenc_runtime.decoder.places import Places, places

Prepared = tuple[Tensor, ...]


class PositionEncoding(nn.Module):
    """Does nothing, which is an encoding too; others override what they change.

    One file of ``positions/`` holds one of these. No tensor is made when one is built but its weights: checkpoints are
    loaded into modules that were built without memory.

    Attributes:
        defaults: the configuration's keys that belong to this encoding, and what they are when they are left out.
        refused: keys that others may give it and that are not implemented, each with what to know about it.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    refused: ClassVar[Mapping[str, str]] = {}

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads = self.kv_heads = slice(None)

    @classmethod
    def embeds(cls) -> bool:
        """Whether it changes the embeddings."""
        return cls.embed is not PositionEncoding.embed

    @classmethod
    def encodes(cls) -> bool:
        """Whether it changes queries and keys."""
        return cls.encode is not PositionEncoding.encode

    @classmethod
    def attends(cls) -> bool:
        """Whether its attention is more than a softmax of products."""
        return cls.attend is not PositionEncoding.attend

    @classmethod
    def longest(cls, config: Any, dtype: torch.dtype) -> int | None:
        """The longest sequence that it has positions for, tokens; None where there is none.

        Args:
            dtype: in which keys are cached.
        """
        return None

    def keep_heads(self, heads: slice, kv_heads: slice) -> None:
        """Attend with these heads alone from now on: what a rank of a tensor-parallel group does."""
        self.heads, self.kv_heads = heads, kv_heads

    @classmethod
    def check(cls, config: Any) -> None:
        """Check what a configuration says about this encoding.

        Raises:
            ValueError: when a value of the configuration is out of range for this encoding.
        """

    @classmethod
    def is_shared(cls, config: Any) -> bool:
        """Whether all layers share one, at ``model.position``; if not, each has its own at ``self_attn.position``."""
        return True

    def initialize(self) -> None:
        """Set the weights that are not those of a linear layer or an embedding table to what training starts from."""

    def embed(self, embeddings: Tensor, places: Places) -> Tensor:
        """What enters the first layer; only of encodings that are shared.

        Args:
            embeddings: ``[batch, num_tokens, hidden_size]``.
        """
        return embeddings

    def prepare(self, places: Places, dtype: torch.dtype) -> Prepared:
        """What the two methods below need of a forward, once a forward if shared and once a layer if not.

        Args:
            dtype: what scores are computed in, float32 or float64.
        """
        return ()

    def encode(self, query: Tensor, key: Tensor, places: Places, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """Queries and keys of the same tokens, before the keys are cached. A cached key never changes.

        Args:
            query: ``[batch, num_heads, num_tokens, head_dim]``.
            key: ``[batch, num_kv_heads, num_tokens, head_dim]``.
        """
        return query, key

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, places: Places, prepared: Prepared, scale: float
    ) -> Tensor:
        """Queries over the cached keys and values.

        Args:
            query: ``[batch, num_heads, num_queries, head_dim]``, encoded.
            key, value: ``[batch, num_kv_heads, num_keys, head_dim]``, encoded.
            scale: multiplies the products of queries and keys.

        Returns:
            ``[batch, num_heads, num_queries, head_dim]`` in at least float32.
        """
        return attention(query, key, value, places.visible, scale)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """All of a layer's attention over sequences without padding or cache.

        Args:
            query: ``[batch, num_heads, num_tokens, head_dim]``, of any floating data type.
            key, value: ``[batch, num_kv_heads, num_tokens, head_dim]``.

        Returns:
            As query, in at least float32.
        """
        here = places(0, query.shape[2], None, query.device)
        prepared = self.prepare(here, summed_in(query.dtype))
        query, key = self.encode(query, key, here, prepared)
        return self.attend(query, key, value, here, prepared, scale)

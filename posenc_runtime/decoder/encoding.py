"""The base class of position encodings: settings, weights, and the steps of attention that an encoding may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from posenc_runtime.decoder.attention import attention, summed_in
from posenc_runtime.decoder.places import Places, places

Prepared = tuple[Tensor, ...]


class PositionEncoding(nn.Module):
    """The base class changes nothing, so it is an encoding, too. A subclass overrides the steps that it changes.

    Each file of ``positions/`` holds one subclass. ``__init__`` must create no tensors except weights, because
    checkpoints are loaded into modules that were built on the meta device.

    Attributes:
        defaults: the configuration keys of this encoding, each with the value that it has when it is left out.
        refused: keys of other implementations of this encoding that are not implemented here, each with the reason.
        heads, kv_heads: the query heads and KV heads that attend (``keep_heads``).
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    refused: ClassVar[Mapping[str, str]] = {}

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads = self.kv_heads = slice(None)

    @classmethod
    def embeds(cls) -> bool:
        """Whether the encoding changes embeddings."""
        return cls.embed is not PositionEncoding.embed

    @classmethod
    def encodes(cls) -> bool:
        """Whether the encoding changes queries and keys."""
        return cls.encode is not PositionEncoding.encode

    @classmethod
    def attends(cls) -> bool:
        """Whether the encoding's attention is more than a softmax of products."""
        return cls.attend is not PositionEncoding.attend

    @classmethod
    def longest(cls, config: Any, dtype: torch.dtype) -> int | None:
        """The longest sequence, tokens, for which the encoding has positions; None if there is no limit.

        Args:
            dtype: in which keys are cached.
        """
        return None

    def keep_heads(self, heads: slice, kv_heads: slice) -> None:
        """Attend with only these heads from now on, as a rank of a tensor-parallel group does."""
        self.heads, self.kv_heads = heads, kv_heads

    @classmethod
    def check(cls, config: Any) -> None:
        """Check what a configuration says about this encoding.

        Raises:
            ValueError: when a value of the configuration is out of range for this encoding.
        """

    @classmethod
    def is_shared(cls, config: Any) -> bool:
        """Whether all layers share one encoding, ``model.position``, or each has its own, ``self_attn.position``."""
        return True

    def initialize(self) -> None:
        """Initialize the weights that are not in a linear layer or an embedding table."""

    def embed(self, embeddings: Tensor, places: Places) -> Tensor:
        """What enters the first layer. Only an encoding that all layers share may override this.

        Args:
            embeddings: ``[batch, num_tokens, hidden_size]``.
        """
        return embeddings

    def prepare(self, places: Places, dtype: torch.dtype) -> Prepared:
        """Compute the tensors that ``encode`` and ``attend`` get as ``prepared``.

        The decoder calls this once in a forward pass if the encoding is shared, and once in each layer if not.

        Args:
            dtype: what scores are computed in, float32 or float64.
        """
        return ()

    def encode(self, query: Tensor, key: Tensor, places: Places, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """Encode queries and keys of the same tokens, before the keys are cached. A cached key never changes.

        Args:
            query: ``[batch, num_heads, num_tokens, head_dim]``.
            key: ``[batch, num_kv_heads, num_tokens, head_dim]``.
        """
        return query, key

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, places: Places, prepared: Prepared, scale: float
    ) -> Tensor:
        """Attention of the queries over all keys and values, cached and new.

        Args:
            query: ``[batch, num_heads, num_queries, head_dim]``, encoded.
            key, value: ``[batch, num_kv_heads, num_keys, head_dim]``, encoded.
            scale: multiplies the products of queries and keys.

        Returns:
            ``[batch, num_heads, num_queries, head_dim]`` in at least float32.
        """
        return attention(query, key, value, places.visible, scale)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """``prepare``, ``encode`` and ``attend`` in one, for sequences without padding or cache.

        Args:
            query: ``[batch, num_heads, num_tokens, head_dim]``, of any floating data type.
            key, value: ``[batch, num_kv_heads, num_tokens, head_dim]``.

        Returns:
            In query's shape, in at least float32.
        """
        here = places(0, query.shape[2], None, query.device)
        prepared = self.prepare(here, summed_in(query.dtype))
        query, key = self.encode(query, key, here, prepared)
        return self.attend(query, key, value, here, prepared, scale)

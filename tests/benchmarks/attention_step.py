"""One step of an attention layer: requests in shuffled blocks, with the queries and the keys that they read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from posenc_runtime.kernels.attention.paged import PagedBatch

SHARED = 4.0  # the first component of every key: what a query has there moves all of its scores alike


@dataclasses.dataclass(frozen=True)
class Layer:
    """
    Attributes:
        block_size: 128 is vLLM's on the CPU.
    """

    dtype: torch.dtype
    num_heads: int = 8
    num_kv_heads: int = 8
    head_dim: int = 128
    block_size: int = 128

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def name(self) -> str:
        heads = f"{self.num_heads} heads" + (f" to {self.num_kv_heads}" if self.num_kv_heads != self.num_heads else "")
        return f"{heads} of {self.head_dim}, {self.dtype_name}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"dtype": self.dtype_name}


@dataclasses.dataclass(frozen=True)
class Work:
    """What a step has to do.

    Attributes:
        kind: ``decode`` has one query a request, ``prefill`` one for every token.
        context: tokens of each request, those of this step included.
        batch: requests.
    """

    kind: Literal["decode", "prefill"]
    context: int
    batch: int = 1

    @property
    def name(self) -> str:
        return f"{self.context:,} tokens" if self.kind == "decode" else f"prefill of {self.context:,}"

    @property
    def queries(self) -> int:
        """Of each request."""
        return 1 if self.kind == "decode" else self.context

    def cache_bytes(self, layer: Layer) -> int:
        """Bytes of keys and values that a layer holds for it."""
        return 2 * self.batch * self.context * layer.num_kv_heads * layer.head_dim * layer.dtype.itemsize


class Step:
    """The tensors of a step.

    Attributes:
        keys, values: of all tokens, ``[batch, context, num_kv_heads, head_dim]``.
        slots: int64 ``[batch, context]``.
        num_blocks: blocks of the cache.
    """

    def __init__(self, layer: Layer, work: Work, seed: int = 0) -> None:
        self.layer, self.work = layer, work
        draw = torch.Generator().manual_seed(seed)
        of_keys = (work.batch, work.context, layer.num_kv_heads, layer.head_dim)
        self.keys = torch.randn(of_keys, generator=draw).to(layer.dtype)
        self.keys[..., 0] = SHARED
        self.values = torch.randn(of_keys, generator=draw).to(layer.dtype)
        queries = (work.batch * work.queries, layer.num_heads, layer.head_dim)
        self._query = torch.randn(queries, generator=draw).to(layer.dtype)
        blocks = math.ceil(work.context / layer.block_size)
        self.num_blocks = work.batch * blocks
        table = torch.randperm(self.num_blocks, generator=draw).to(torch.int32).view(work.batch, blocks)
        places = torch.arange(work.context)
        self.slots = table[:, places // layer.block_size].long() * layer.block_size + places % layer.block_size
        self.paged = PagedBatch(
            table,
            torch.arange(work.batch + 1, dtype=torch.int32) * work.queries,
            torch.full((work.batch,), work.context, dtype=torch.int32),
            work.queries,
            work.context,
        )

    def query(self, moved: float = 0.0) -> Tensor:
        """``[batch * queries, num_heads, head_dim]``; all scores are moved by the same number."""
        query = self._query.clone()
        query[..., 0] = moved / (self.layer.scale * SHARED)
        return query

    def earlier(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each request, what is cached before the step: keys, values ``[tokens, num_kv_heads, head_dim]``, slots."""
        before = self.work.context - self.work.queries
        for request in zip(self.keys, self.values, self.slots, strict=True):
            keys, values, slots = (tokens[:before] for tokens in request)
            yield keys, values, slots

    def new(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of the queries' tokens, ``[batch * queries, num_kv_heads, head_dim]``, and their slots."""
        before = self.work.context - self.work.queries
        keys, values, slots = (tokens[:, before:].flatten(0, 1) for tokens in (self.keys, self.values, self.slots))
        return keys, values, slots.contiguous()  # kernels take no stride for slots

    def empty_cache(self) -> Tensor:
        """``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``, as vLLM shapes the cache of a layer."""
        layer = self.layer
        shape = (self.num_blocks, layer.num_kv_heads, layer.block_size, 2 * layer.head_dim)
        return torch.zeros(shape, dtype=layer.dtype)

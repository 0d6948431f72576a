"""One step of attention on a device: requests of equal length in shuffled blocks of caches of several layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from posenc_runtime.kernels.attention.paged import PagedBatch
from tests.benchmarks.attention_step import SHARED
from tests.benchmarks.gpu.checks import all_written, attended_alike
from tests.benchmarks.gpu.sizes import Model
from tests.benchmarks.gpu.trial import Rival, Stage
from tests.tolerance import ATTENTION_ROW_BFLOAT16


class PagedStep:
    """
    Args:
        kind: "decode" has one query a request, "prefill" one for every token.
        past: tokens of each request that a prefill finds in the cache, and has no queries for.
        shares: the first component of every key is ``SHARED``, so that a query can move all of its scores alike.

    Attributes:
        batch: the requests.
        caches: of each layer ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``, tokens before heads in memory;
            as many layers as a sample goes through.
        out: ``[num_tokens, num_heads, head_dim]``.
    """

    def __init__(
        self,
        stage: Stage,
        model: Model,
        context: int,
        num_requests: int = 1,
        kind: Literal["decode", "prefill"] = "decode",
        shares: bool = False,
        past: int = 0,
    ) -> None:
        self.model, self.context, self._shares = model, context, shares
        device, draw = stage.device, stage.generator()
        queries = 1 if kind == "decode" else context - past
        blocks = model.blocks_of(context)
        table = torch.randperm(num_requests * blocks, device=device, generator=draw).to(torch.int32)
        self.batch = PagedBatch(
            table.view(num_requests, blocks),
            torch.arange(num_requests + 1, dtype=torch.int32, device=device) * queries,
            torch.full((num_requests,), context, dtype=torch.int32, device=device),
            queries,
            context,
        )
        self._query = torch.randn(
            num_requests * queries, model.num_heads, model.head_dim, dtype=model.dtype, device=device, generator=draw
        )
        self.out = torch.empty_like(self._query)
        # A prompt reads what it has just written, and computes for much longer than it reads.
        enough = -(-stage.sizes.sample_bytes // model.cache_bytes(num_requests * context))
        if num_requests == 1:  # what a launch costs besides is shared by layers, as it is in a model
            enough = max(enough, stage.sizes.lone_layers)
        in_memory = (num_requests * blocks, model.block_size, model.num_kv_heads, 2 * model.head_dim)
        self.caches = []
        for _ in range(enough if kind == "decode" else 1):
            memory = torch.randn(in_memory, dtype=model.dtype, device=device, generator=draw)
            if shares:
                memory[..., 0] = SHARED
            self.caches.append(memory.transpose(1, 2))

    def query(self, moved: float = 0.0) -> Tensor:
        """``[num_tokens, num_heads, head_dim]``.

        Args:
            moved: added to all scores, where keys share a component.
        """
        query = self._query.clone()
        if self._shares:
            query[..., 0] = moved / (self.model.scale * SHARED)
        return query

    def keys_and_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """Each ``[num_blocks, num_kv_heads, block_size, head_dim]``."""
        keys, values = self.caches[layer].split(self.model.head_dim, dim=-1)
        return keys, values

    @property
    def decoded_bytes(self) -> int:
        return self.model.decoded_bytes(self.context, len(self.batch))

    def rival(
        self,
        stage: Stage,
        attend: Callable[[int], None],
        expected: Tensor,
        moved: int | None = None,
        allowed: float = ATTENTION_ROW_BFLOAT16,
        rows: Tensor | None = None,
    ) -> Rival:
        """Run it over the first layer, and see whether ``out`` is as expected.

        Args:
            attend: writes ``out``, over the layer of that number.
            moved: see ``Rival``.
            allowed: of an output, in parts of its norm.
            rows: of ``out``, int64, whose outputs are expected; None for all. The others must be numbers.

        Raises:
            Wrong: when it is not.
        """
        self.out.fill_(math.nan)
        kernels = stage.note(lambda: attend(0))
        all_written(self.out)
        attended_alike(self.out if rows is None else self.out[rows], expected, allowed)
        return Rival(attend, len(self.caches), moved, kernels=kernels)

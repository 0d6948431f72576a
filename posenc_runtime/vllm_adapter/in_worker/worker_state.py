"""What a worker process knows about its KV blocks. The worker's half writes it, and the rotary op reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc_runtime.encodings.spec import Frequencies, RotarySpec
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_worker.whole_model import WholeModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotary:
    """A rotary embedding that was built for a deployment.

    Attributes:
        head_dim: width of the heads that the embedding rotates.
        own: the checkpoint's rotary encoding.
        inv_freq: rad / token, ``[rotary_dim // 2]``, the frequencies of vLLM's table at scale 1, computed in float32;
            None where attention rotates.
        is_fused: whether attention rotates in place of the embedding.
        factor_on_keys: whether cached keys carry the attention factor of their scale. If not, queries carry its square;
            in the stacked table, both carry the factor of scale 1 all the same, as vLLM's own do.
        positions_factor: how many times the longest request its positions may reach: in M-RoPE, those of a video may
            exceed its tokens.
        has_other_rotations: whether the model may have rotary embeddings that are not scaled (``Checkpoint``).
        module: the rotary embedding itself.
        engine: id of the engine of this process that the embedding was built for.
    """

    deployment: Deployment
    head_dim: int
    own: RotarySpec
    inv_freq: Tensor | None = dataclasses.field(default=None, compare=False, repr=False)
    is_neox_style: bool
    is_fused: bool = False
    factor_on_keys: bool = True
    positions_factor: int = 1
    has_other_rotations: bool = False
    module: Any = dataclasses.field(default=None, compare=False, repr=False)
    engine: str = dataclasses.field(default="", compare=False)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of each scale's part of the stacked table."""
        return tuple(self.positions_factor * length for length in self.deployment.scale_set.lengths)

    @property
    def row_offsets(self) -> tuple[int, ...]:
        """First row of each scale's part of the stacked table."""
        return tuple(self.positions_factor * offset for offset in self.deployment.scale_set.row_offsets)

    def as_built(self) -> Rotary:
        """The embedding after its model was built: some models change its ``is_neox_style``."""
        return dataclasses.replace(self, is_neox_style=getattr(self.module, "is_neox_style", self.is_neox_style))

    def frequencies(self, scale_index: int) -> Frequencies:
        """The frequencies of a scale's keys: rounded to float32 as in tables, held in float64. Decision 26.

        A pair that the scale does not change gets the frequency of vLLM's own table, whose last digits are wrong. With
        the exact frequency, re-rotation would leave this error in every key, and the angle would be off by more at
        larger positions.
        """
        found = self.deployment.frequencies(self.own, scale_index)
        inv_freq = found.inv_freq.float().double()
        if self.inv_freq is not None:
            is_left_alone = found.inv_freq == self.deployment.frequencies(self.own, 0).inv_freq
            inv_freq = torch.where(is_left_alone, self.inv_freq.double().to(inv_freq.device), inv_freq)
        return dataclasses.replace(found, inv_freq=inv_freq)

    def table_frequencies(self, scale_index: int) -> Frequencies:
        """As ``frequencies``, with the attention factor that the stacked table has."""
        found = self.frequencies(scale_index)
        if self.factor_on_keys:
            return found
        return dataclasses.replace(found, attention_factor=self.frequencies(0).attention_factor)

    @property
    def query_factors(self) -> tuple[float, ...]:
        """What queries of each scale are multiplied by once the stacked table has rotated them."""
        in_table = [self.table_frequencies(index).attention_factor for index in range(len(self.lengths))]
        factors = [self.frequencies(index).attention_factor for index in range(len(self.lengths))]
        return tuple((factor / of_row) ** 2 for factor, of_row in zip(factors, in_table, strict=True))


@dataclasses.dataclass
class WorkerState:
    """The state of this process. vLLM's custom ops can reach only such state and the forward context.

    Attributes:
        block_row_offset: int64 ``[num_blocks]``, first table row of the scale that each physical block carries.
            Allocated once and written in place only: captured CUDA graphs hold its address. None where attention
            rotates, which has a table of its own (``RotaryScales.block_scale``).
        block_size: for each attention layer, tokens per block of its KV cache group.
        rotaries: the rotary embeddings of the engine that was built last.
        model: finds the model of the first rotary embedding.
        drafter: the model that drafts tokens; None where none does, or what drafts is no model.
        query_factors: what queries of each scale are multiplied by; empty where by nothing (``latent_attention``).
        block_query_factor: float32 ``[num_blocks]``, that of the scale that each physical block carries.
        asked_rows: int64 ``[num_tokens]``, the rows that all tokens take while the model is asked how it rotates
            (``layer_rotations``); None otherwise.
    """

    block_row_offset: Tensor | None = None
    block_size: dict[str, int] = dataclasses.field(default_factory=dict)
    rotaries: list[Rotary] = dataclasses.field(default_factory=list)
    model: WholeModel | None = None
    drafter: nn.Module | None = None
    query_factors: Sequence[float] = ()
    block_query_factor: Tensor | None = None
    asked_rows: Tensor | None = None

    def enter(self, rotary: Rotary) -> None:
        """Note a rotary embedding that was built. The first one of a new engine clears the state of the last engine."""
        if self.rotaries and self.rotaries[-1].engine != rotary.engine:
            self.block_row_offset, self.block_size, self.rotaries = None, {}, []
            self.query_factors, self.block_query_factor = (), None
            self.forget_model()
        if self.model is None:
            self.model = WholeModel(rotary.module)
        self.rotaries.append(rotary)

    def follow(self, part: nn.Module) -> None:
        """Find the model that this part of it belongs to, and no longer the model of the first rotary embedding."""
        self.forget_model()
        self.model = WholeModel(part)

    def forget_model(self) -> None:
        if self.model is not None:
            self.model.stop()
        self.model = None


STATE = WorkerState()

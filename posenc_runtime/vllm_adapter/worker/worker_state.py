"""What a worker process knows about its KV blocks; read by the rotary op, written by the connector's worker half."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies, RotarySpec
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.worker.whole_model import WholeModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotary:
    """A rotary embedding that was built for a deployment.

    Attributes:
        head_dim: width of the heads that it is given.
        own: the checkpoint's.
        inv_freq: rad / token, ``[rotary_dim // 2]``, what vLLM's table turns pairs by at scale 1, computed in float32;
            None where attention rotates.
        is_fused: whether attention rotates in its stead.
        factor_on_keys: whether cached keys carry the attention factor of their scale.
        module: the rotary embedding itself.
        engine: which of this process's engines it was built for.
    """

    deployment: Deployment
    head_dim: int
    own: RotarySpec
    inv_freq: Tensor | None = dataclasses.field(default=None, compare=False, repr=False)
    is_neox_style: bool
    is_fused: bool = False
    factor_on_keys: bool = True
    module: Any = dataclasses.field(default=None, compare=False, repr=False)
    engine: str = dataclasses.field(default="", compare=False)

    def as_built(self) -> Rotary:
        """As its model left it: some change the style of the embedding that vLLM made for them."""
        return dataclasses.replace(self, is_neox_style=getattr(self.module, "is_neox_style", self.is_neox_style))

    def frequencies(self, scale_index: int) -> Frequencies:
        """What the keys of a scale are rotated with: float32 as the tables take them, held in float64. Decision 26.

        A pair that a scale leaves alone turns as it does in vLLM's own table, whose frequencies are wrong by a unit in
        their last place or two. Re-rotation would leave that part of the angle in every key, the more the farther.
        """
        found = self.deployment.frequencies(self.own, scale_index)
        inv_freq = found.inv_freq.float().double()
        if self.inv_freq is not None:
            is_left_alone = found.inv_freq == self.deployment.frequencies(self.own, 0).inv_freq
            inv_freq = torch.where(is_left_alone, self.inv_freq.double().to(inv_freq.device), inv_freq)
        return dataclasses.replace(found, inv_freq=inv_freq)


@dataclasses.dataclass
class WorkerState:
    """One per process, because vLLM's custom ops can reach nothing but process state and the forward context.

    Attributes:
        block_row_offset: int64 ``[num_blocks]``, first table row of the scale that each physical block carries.
            Allocated once and written in place only: captured CUDA graphs hold its address. None where attention
            rotates, which has a table of its own (``RotaryScales.block_scale``).
        block_size: attention layer to tokens per block of its KV cache group.
        rotaries: the rotary embeddings of the engine that was built last.
        model: what the first of them is built into, where somebody has to know.
    """

    block_row_offset: Tensor | None = None
    block_size: dict[str, int] = dataclasses.field(default_factory=dict)
    rotaries: list[Rotary] = dataclasses.field(default_factory=list)
    model: WholeModel | None = None

    def enter(self, rotary: Rotary) -> None:
        """A rotary embedding was built; with the first one of another engine, all of the one before is gone."""
        if self.rotaries and self.rotaries[-1].engine != rotary.engine:
            self.block_row_offset, self.block_size, self.rotaries = None, {}, []
            self.forget_model()
        if rotary.deployment.measures_budget and self.model is None:
            self.model = WholeModel(rotary.module)
        self.rotaries.append(rotary)

    def forget_model(self) -> None:
        if self.model is not None:
            self.model.stop()
        self.model = None


STATE = WorkerState()

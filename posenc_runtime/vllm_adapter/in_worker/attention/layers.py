"""Chooses a layer's backend by what the model asks of the layer's attention. The same on every device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from posenc_runtime.decoder.encoding import PositionEncoding
from posenc_runtime.encodings.distance import BiasForm, Flat, Linear, Power
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice, Kind, can_attend
from posenc_runtime.vllm_adapter.contract.errors import Unsupported

_HAS = {
    "stock": "ordinary attention",
    "bias": "a distance bias",
    "cope": "contextual positions",
    "plain": "attention in plain PyTorch",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What a layer asks of its attention, besides sizes. The callables are called after weights are loaded.

    Attributes:
        encoding: name of the position encoding, for people to read; None for models that are not ours.
        alibi_slopes, use_alibi_sqrt: given by vLLM's own models.
        distance_bias, cope, attend: given by our models. ``attend`` returns an encoding that computes attention itself,
            in plain torch.
    """

    encoding: str | None = None
    alibi_slopes: list[float] | None = None
    use_alibi_sqrt: bool = False
    distance_bias: Callable[[], BiasForm] | None = None
    cope: Callable[[], Cope] | None = None
    attend: Callable[[], PositionEncoding] | None = None

    @property
    def wants(self) -> Kind:
        """The backend that is made for this layer."""
        if self.cope is not None:
            return "cope"
        if self.attend is not None:
            return "plain"
        return "bias" if self.distance_bias is not None or self.alibi_slopes is not None else "stock"

    @property
    def name(self) -> str:
        """Name of the layer's position encoding."""
        if self.encoding is not None:
            return self.encoding
        if self.alibi_slopes is not None:
            return "alibi_sqrt" if self.use_alibi_sqrt else "alibi"
        return "the model's own"

    def form(self, num_heads: int) -> BiasForm:
        """The layer's distance bias; flat if it has none."""
        if self.distance_bias is not None:
            return self.distance_bias()
        if self.alibi_slopes is None:
            return Flat(num_heads)
        slopes = torch.tensor(self.alibi_slopes, dtype=torch.float32)
        return Power(slopes, torch.full_like(slopes, 0.5)) if self.use_alibi_sqrt else Linear(slopes)


def batch_of(attn_metadata: Any) -> PagedBatch:
    """A step's requests in the form that our kernels take. vLLM's metadata has these names on every device."""
    return PagedBatch(
        attn_metadata.block_table,
        attn_metadata.query_start_loc,
        attn_metadata.seq_lens,
        attn_metadata.max_query_len,
        attn_metadata.max_seq_len,
    )


def select(choice: AttentionChoice, asked: Asked, *, stock_has_alibi_sqrt: bool) -> Kind:
    """Which backend a layer gets.

    Args:
        stock_has_alibi_sqrt: whether vLLM's backend on this device has ALiBi's square root; every one has ALiBi.

    Raises:
        Unsupported: when the deployment chose a backend that cannot do what the layer asks for.
    """
    wanted = asked.wants
    if choice.backend == "auto":
        return wanted
    stock_can = wanted == "stock" or (
        asked.alibi_slopes is not None and (stock_has_alibi_sqrt or not asked.use_alibi_sqrt)
    )
    if not can_attend(choice.backend, wanted, stock_can=stock_can):
        raise Unsupported(
            f"attention.backend must be auto for layers with {_HAS[wanted]} ({asked.name}), got {choice.backend}"
        )
    return choice.backend


def refuse(asked: Asked, **settings: Any) -> None:
    """Refuse settings of a layer that our kernels do not support.

    Args:
        settings: what vLLM asks for; any that is set is refused.

    Raises:
        Unsupported: when a setting is set; the message names the first one and its value.
    """
    for name, value in settings.items():
        if value:
            raise Unsupported(
                f"{name} must be left out for layers with {_HAS[asked.wants]} ({asked.name}), got {value!r}: posenc's "
                "attention reads all earlier keys, exactly as the model computed them"
            )

"""The rotary embedding of models on vLLM's Transformers backend: cosines and sines once a forward, for all layers.

These models are transformers' own. vLLM replaces their linear layers and their attention, not their rotary embedding.
So we replace it, when vLLM has replaced the rest: scale 1 stays transformers' own to the bit. Decision 69.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.vllm_adapter.checkpoint.model_code.rope_parameters import SEES_ALL
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.rotary import building
from posenc_runtime.vllm_adapter.in_worker.rotary.embedding import stacked_table
from posenc_runtime.vllm_adapter.in_worker.rotary.rows import make_room_for_rows
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE

_BY_BATCH = ("dynamic", "longrope")  # methods of transformers whose frequencies follow the length of a batch
_ROWS_AT_ONCE = 2**14  # of transformers' own cosines, which are computed from positions


class PosencTransformersRotaryEmbedding(nn.Module):
    """Answers like the embedding of transformers that it replaces, with each token at the scale of its block.

    Args:
        stock: transformers' module, which goes on answering for types of layers that are not scaled.
        of_layers: the type of layers that is scaled; None where the module has one rotation for all.

    Attributes:
        cos_sin_cache: float32 ``[num_rows, rotary_dim]``, the stacked table, cosines in the first half of each row.
        pair_of_element: int64 ``[rotary_dim]``, the pair of each element of a head that rotates.
    """

    cos_sin_cache: Tensor
    pair_of_element: Tensor
    posenc_rows: Tensor

    def __init__(self, stock: Any, of_layers: str | None) -> None:
        super().__init__()
        self.stock, self._of_layers = stock, of_layers
        inv_freq = self._own("inv_freq")
        self.rotary_dim = self.head_size = 2 * inv_freq.numel()
        self.base = _theta(stock.config)

    def tell_own_rotation(self) -> None:
        """Note the rotation at transformers' module, for attention that turns queries.

        A rotation that follows the length of the batch is not noted.
        """
        rope_type = getattr(self.stock, "rope_type", None)
        if isinstance(rope_type, Mapping):  # by type of layer
            rope_type = rope_type.get(self._of_layers)
        if rope_type not in _BY_BATCH:
            self.stock.posenc_own = Frequencies(self._own("inv_freq"), float(self._own("attention_scaling")))

    def scale(self) -> bool:
        """Build the stacked table, if an engine has a deployment that scales this embedding."""
        deployment = building.checked_deployment()
        if deployment is None or not deployment.scales_keys:
            return False
        inv_freq, factor = self._own("inv_freq"), float(self._own("attention_scaling"))
        made = building.enter(deployment, self, Frequencies(inv_freq, factor), is_neox_style=True)
        if made is None:
            return False
        if set(made.query_factors) != {1.0}:
            raise Unsupported(
                "kv_cache_dtype must be auto, float16 or bfloat16 for a model on the Transformers backend whose keys "
                f"are re-rotated by {deployment.rope_type}, got float8: its queries and keys get the same cosines, so "
                "the attention factor cannot be on queries alone. Or set on_crossing to recompute or pin, and "
                "prefix_reuse to exact"
            )
        make_room_for_rows(self)
        self.register_buffer("pair_of_element", self._pairs(), persistent=False)
        first = self.pair_of_element.sort(stable=True).indices[::2]  # of the two elements of each pair
        unscaled = torch.cat(
            [
                torch.cat([part[:, first] for part in self._stock_cos_sin(rows)], -1)
                for rows in torch.split(torch.arange(made.lengths[0], device=inv_freq.device), _ROWS_AT_ONCE)
            ]
        )
        self.register_buffer("cos_sin_cache", stacked_table(made, unscaled), persistent=False)
        return True

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        """Cosines and sines, ``[1, num_tokens, rotary_dim]`` each, in the data type of ``x``."""
        if layer_type != self._of_layers:
            answered: tuple[Tensor, Tensor] = self.stock(x, position_ids, layer_type)
            return answered
        torch.ops.vllm.posenc_rope_rows(position_ids, self.posenc_rows)
        cos_sin = self.cos_sin_cache[self.posenc_rows[: position_ids.numel()]]
        cos, sin = (part[None, :, self.pair_of_element].to(x.dtype) for part in cos_sin.chunk(2, dim=-1))
        return cos, sin

    def _own(self, name: str) -> Any:
        return getattr(self.stock, name if self._of_layers is None else f"{self._of_layers}_{name}")

    def _stock_cos_sin(self, positions: Tensor) -> list[Tensor]:
        """transformers' own, float32 ``[num_positions, rotary_dim]`` each."""
        states = torch.zeros(1, dtype=torch.float32, device=positions.device)
        named = {} if self._of_layers is None else {"layer_type": self._of_layers}
        return [part[0] for part in self.stock(states, position_ids=positions[None], **named)]

    def _pairs(self) -> Tensor:
        """Which pair each element belongs to, read off the angles at position 1, which differ from pair to pair."""
        cos, sin = self._stock_cos_sin(torch.ones(1, dtype=torch.int64, device=self._own("inv_freq").device))
        distance = torch.atan2(sin[0], cos[0])[:, None] - self._own("inv_freq")[None]
        pairs: Tensor = distance.abs().argmin(-1)
        return pairs


def substitute() -> None:
    """Make vLLM's Transformers backend give its models this embedding."""
    from vllm.model_executor.models.transformers import base

    base.Base.recursive_replace = replacing(base.Base.recursive_replace)


def replacing(stock: Callable[[Any], None]) -> Callable[[Any], None]:
    """vLLM's replacement of a model's modules, and then ours of its rotary embeddings."""

    @functools.wraps(stock)
    def recursive_replace(self: Any) -> None:
        stock(self)
        deployment = building.checked_deployment()
        for name, module in list(self.model.named_modules()):
            for of_layers in _scalable(module):
                ours = PosencTransformersRotaryEmbedding(module, of_layers)
                if deployment is not None and deployment.turns_queries:
                    ours.tell_own_rotation()
                elif ours.scale():
                    self.model.set_submodule(name, ours)
                    STATE.follow(self)

    return recursive_replace


def _scalable(module: nn.Module) -> list[str | None]:
    """The types of layers for which a module may have the rotation that is scaled; nothing if it rotates nothing."""
    if hasattr(module, f"{SEES_ALL}_inv_freq"):
        return [SEES_ALL]
    return [None] if hasattr(module, "inv_freq") and hasattr(module, "attention_scaling") else []


def _theta(config: Any) -> float:
    from posenc_runtime.vllm_adapter.checkpoint.model_code.rope_parameters import scaled_rope_parameters

    return float(scaled_rope_parameters(config)["rope_theta"])

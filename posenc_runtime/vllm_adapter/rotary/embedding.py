"""vLLM's rotary embedding with a stacked table: the scale of a token's block chooses the token's row. Decision 1.

A subclass replaces vLLM's class, by ``CustomOp.register_oot``. Only the row index differs from stock: the parent's own
table serves scale 1 and the parent's own kernel rotates, so the output of an unscaled request is that of stock vLLM to
the bit. Where attention rotates, the embedding returns queries and keys as they are, and has no table. Decision 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc_runtime.encodings.table import fill_cos_sin
from posenc_runtime.vllm_adapter.rotary import building
from posenc_runtime.vllm_adapter.rotary.rows import make_room_for_rows
from posenc_runtime.vllm_adapter.worker.worker_state import Rotary

_FORWARDS = ("forward_native", "forward_cuda", "forward_cpu", "forward_oot", "forward_hip", "forward_xpu")


def scaling(rotary_class: Any) -> Any:
    """A subclass of a rotary class of vLLM, with the stacked table where an engine has a deployment."""

    def _compute_cos_sin_cache(self: Any) -> Tensor:
        deployment = building.checked_deployment()
        if deployment is None or not deployment.rotates:
            stock: Tensor = rotary_class._compute_cos_sin_cache(self)
            return stock
        self.posenc_scaled = True
        inv_freq = rotary_class._compute_inv_freq(self, self.base)
        made = building.enter(deployment, self, inv_freq, is_neox_style=self.is_neox_style)
        self.posenc_fused = made.is_fused
        if made.is_fused:  # a table without rows, so that code which reads it anyway fails
            return torch.empty(0, self.rotary_dim)
        make_room_for_rows(self)
        unscaled = _unscaled_table(self, rotary_class, deployment.scale_set.lengths[0])
        return stacked_table(made, unscaled)

    members: dict[str, Any] = {
        "posenc_scaled": False,
        "posenc_fused": False,
        "_compute_cos_sin_cache": _compute_cos_sin_cache,
    }
    members |= {name: by_scale(getattr(rotary_class, name)) for name in _FORWARDS if hasattr(rotary_class, name)}
    return type("Posenc" + rotary_class.__name__, (rotary_class,), members)


def stacked_table(made: Rotary, unscaled: Tensor) -> Tensor:
    """The tables of all scales, one below the other. Decision 4.

    Args:
        unscaled: ``[at least the first scale's length, rotary_dim]``, the checkpoint's own table.

    Returns:
        ``[deployment.scale_set.num_rows, rotary_dim]``, in the data type of ``unscaled``.
    """
    scale_set = made.deployment.scale_set
    table = unscaled.new_empty(scale_set.num_rows, unscaled.shape[1])
    for index, part in enumerate(torch.split(table, list(scale_set.lengths))):
        if index == 0:
            part.copy_(unscaled.narrow(0, 0, scale_set.lengths[0]))
        else:
            fill_cos_sin(part, made.frequencies(index))
    return table


def by_scale(parent: Callable[..., Any]) -> Callable[..., Any]:
    """A rotating method of vLLM, called with each token's row in the stacked table, or skipped if attention rotates."""

    def forward(
        self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None, *others: Any, **named: Any
    ) -> Any:
        if self.posenc_fused:
            return query, key
        if self.posenc_scaled:
            num_tokens = positions.numel()
            torch.ops.vllm.posenc_rope_rows(positions, self.posenc_rows)
            positions = self.posenc_rows[:num_tokens]
        return parent(self, positions, query, key, *others, **named)

    return forward


def _unscaled_table(module: Any, rotary_class: Any, num_rows: int) -> Tensor:
    served = module.max_position_embeddings
    module.max_position_embeddings = num_rows
    try:
        table: Tensor = rotary_class._compute_cos_sin_cache(module)
    finally:
        module.max_position_embeddings = served
    return table

"""Where the tokens of a forward pass stand: positions, distances without padding, and which keys a query may read."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
    """Positions, distances and visibility. The first dimension is the batch, or 1 if no sequence has padding.

    Attributes:
        positions: int64 ``[batch, num_queries]``, the position of each query in its own sequence, from 0.
        held: bool ``[batch, num_queries]``, whether the query is a token and not padding.
        distance: int64 ``[batch, num_queries, num_keys]``, tokens from key to query; 0 where the key is not visible.
        visible: bool ``[batch, num_queries, num_keys]``, whether the query may read the key. Padding reads only
            itself, so that each query reads at least one key.
    """

    positions: Tensor
    held: Tensor
    distance: Tensor
    visible: Tensor

    @property
    def num_keys(self) -> int:
        return self.visible.shape[-1]


def standing_at(positions: Tensor) -> Places:
    """The places of tokens that are embedded or encoded without attention: there are no keys.

    Args:
        positions: int64 ``[batch, num_tokens]``.
    """
    nothing = positions.new_zeros(*positions.shape, 0)
    return Places(positions, torch.ones_like(positions, dtype=torch.bool), nothing, nothing.bool())


def places(num_cached: int, num_new: int, attention_mask: Tensor | None, device: torch.device) -> Places:
    """The places of a forward pass over new tokens, which follow the cached ones.

    Args:
        num_cached, num_new: slots, padding included.
        attention_mask: ``[batch, num_cached + num_new]``, 0 where a slot holds padding; None if no slot does.

    Raises:
        ValueError: when the mask has another shape; masks of four dimensions are refused, too.
    """
    num_keys = num_cached + num_new
    slots = torch.arange(num_keys, device=device)
    if attention_mask is None:
        return _among(slots[None], slots.new_ones(1, num_keys, dtype=torch.bool), num_cached)
    if attention_mask.ndim != 2 or attention_mask.shape[1] != num_keys:
        raise ValueError(
            f"attention_mask must be [batch, {num_keys}], one entry for each of {num_cached} cached and {num_new} new "
            f"tokens, got {list(attention_mask.shape)}"
        )
    held = attention_mask.to(device=device, dtype=torch.bool)
    if held.all():
        return places(num_cached, num_new, None, device)
    return _among((held.long().cumsum(-1) - 1).clamp(min=0), held, num_cached)


def _among(positions: Tensor, held: Tensor, num_cached: int) -> Places:
    """The places of the new slots, which are queries, among all slots, which are keys.

    Args:
        positions: int64 ``[batch, num_keys]``, of all slots.
        held: bool ``[batch, num_keys]``, whether a slot holds a token.
    """
    slots = torch.arange(positions.shape[1], device=positions.device)
    back = slots[num_cached:, None] - slots  # [num_queries, num_keys]
    visible = (back >= 0) & held[:, None] | (back == 0)
    distance = positions[:, num_cached:, None] - positions[:, None]
    return Places(positions[:, num_cached:], held[:, num_cached:], distance.masked_fill(~visible, 0), visible)

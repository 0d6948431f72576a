"""How vLLM itself rotates with an embedding that is being built: read off the code and the table of its class.

vLLM's classes compute frequencies from different arguments. All of them do it in ``_compute_inv_freq``, and make a
table of cosines and sines.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies

# Classes with these attributes compute frequencies from the length of their table.
_BY_LENGTH = ("beta_fast", "max_trained_positions")


def own_rotation(rotary_class: Any, module: Any) -> Frequencies | None:
    """Frequencies and attention factor of vLLM's own table.

    Args:
        rotary_class: a class of vLLM.
        module: an instance of a subclass, in the middle of its constructor.

    Returns:
        ``inv_freq`` is vLLM's float32, ``[rotary_dim // 2]``, on its device. None where the table is not made of one
        frequency for each pair.
    """
    found: list[Tensor] = []
    compute = functools.partial(rotary_class._compute_inv_freq, module)

    def recording(*arguments: Any) -> Tensor:
        found.append(compute(*arguments))
        return found[-1]

    module._compute_inv_freq = recording
    try:
        table = own_table(rotary_class, module, 2)
    finally:
        del module._compute_inv_freq
    if not found or table.dim() != 2 or table.shape[1] != 2 * found[-1].numel():
        return None
    # vLLM's class for linear scaling divides the positions.
    inv_freq = found[-1] / next(iter(getattr(module, "scaling_factors", ())), 1.0)
    cos, sin = table[1].float().chunk(2)
    if table.is_meta or not torch.allclose(torch.atan2(sin, cos), inv_freq, rtol=1e-4, atol=1e-6):
        return None
    return Frequencies(inv_freq, float(table[0, 0]))


def table_as_long(rotary_class: Any, module: Any, num_rows: int) -> Tensor:
    """vLLM's own table, of at least ``num_rows`` rows, and of at least as many as vLLM would make.

    Raises:
        ValueError: when frequencies of the class depend on the length of its table, and that is too short.
    """
    table = own_table(rotary_class, module, max(num_rows, module.max_position_embeddings))
    if len(table) < num_rows:
        raise ValueError(
            f"every rotary embedding's table must have a row for each of {num_rows} positions, but the table of "
            f"layers that are not scaled has {len(table)}: lower max_model_len"
        )
    return table


def own_table(rotary_class: Any, module: Any, num_rows: int) -> Tensor:
    """vLLM's own table, of at least ``num_rows`` rows, and no more than that where the class lets us choose."""
    if any(getattr(module, name, None) is not None for name in _BY_LENGTH):
        table: Tensor = rotary_class._compute_cos_sin_cache(module)
        return table
    served = module.max_position_embeddings
    module.max_position_embeddings = num_rows
    try:
        table = rotary_class._compute_cos_sin_cache(module)
    finally:
        module.max_position_embeddings = served
    return table

"""The table of cosines and sines, to which every rotary method reduces."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies

_ANGLES = 2**20  # angles computed at once: 8 MiB in float64, with at most three such tensors in memory


def cos_sin_cache(frequencies: Frequencies, num_positions: int) -> Tensor:
    """Cosines in the first half of each row, sines in the second (vLLM's layout).

    Returns:
        float32, ``[num_positions, rotary_dim]``, on the device of ``inv_freq``.
    """
    inv_freq = frequencies.inv_freq
    table = torch.empty(num_positions, 2 * inv_freq.numel(), dtype=torch.float32, device=inv_freq.device)
    fill_cos_sin(table, frequencies)
    return table


def fill_cos_sin(table: Tensor, frequencies: Frequencies) -> None:
    """Write cosines and sines into an existing table, some rows at a time, so that no second table takes memory.

    ``inv_freq`` is rounded to float32 first, as engines and the training of checkpoints round it. Its product with the
    position is taken in float64, because float32 rounds an angle between 65,536 and 131,072 rad by up to 2^-8 rad.
    Each cosine and sine is rounded to float32, and then to the table's data type. Decision 25.

    Args:
        table: ``[num_positions, rotary_dim]``, of any floating data type, on the device of ``inv_freq``; written in
            place.
    """
    inv_freq = frequencies.inv_freq.float().double()
    num_pairs = inv_freq.numel()
    first = 0
    for rows in torch.split(table, max(_ANGLES // num_pairs, 1)):
        positions = torch.arange(first, first + len(rows), dtype=torch.float64, device=inv_freq.device)
        angle = torch.outer(positions, inv_freq)  # rad
        cos, sin = torch.chunk(rows, 2, dim=1)
        cos.copy_(angle.cos().mul_(frequencies.attention_factor).float())
        sin.copy_(angle.sin().mul_(frequencies.attention_factor).float())
        first += len(rows)

"""The narrow waist: every rotary method reduces to one table of cosines and sines."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import Frequencies


def cos_sin_cache(frequencies: Frequencies, num_positions: int) -> Tensor:
    """Cosines in the first half of each row, sines in the second (vLLM's layout).

    ``inv_freq`` is rounded to float32 first, as every engine and every checkpoint's training did; the product
    with the position is then taken in float64, because float32 rounds one between 65,536 and 131,072 by up to 2^-8 rad.

    Returns:
        float32, ``[num_positions, rotary_dim]``.
    """
    inv_freq = frequencies.inv_freq.float().double()
    angle = torch.outer(torch.arange(num_positions, dtype=torch.float64), inv_freq)  # rad
    return (torch.cat((angle.cos(), angle.sin()), dim=-1) * frequencies.attention_factor).float()

"""Stock vLLM with a static scale, but for its table: angles are taken in float64, where vLLM's are float32 throughout.

Written from the papers: it shares nothing with ours but that frequencies are float32 numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from tests.engine.run_engine import main


def _linear(rotary: Any) -> torch.Tensor:
    """Chen et al. 2023, arXiv:2306.15595, equation 3."""
    (factor,) = rotary.scaling_factors
    return _table(rotary, _inv_freq(rotary) / factor, factor, 1.0)


def _yarn(rotary: Any) -> torch.Tensor:
    """Peng et al. 2023, arXiv:2309.00071: equations 11 to 13 by whole pairs, with alpha 1 and beta 32, and 15."""
    factor = rotary.scaling_factor
    inv_freq = _inv_freq(rotary)

    def pair_of(turns: float) -> float:
        wavelength = rotary.max_position_embeddings / turns
        return rotary.rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rotary.base))

    first, last = math.floor(pair_of(32)), math.ceil(pair_of(1))
    interpolated = np.clip((np.arange(len(inv_freq)) - first) / (last - first), 0, 1)
    blended = (1 - interpolated) * inv_freq + interpolated * inv_freq / factor
    return _table(rotary, blended, factor, 0.1 * math.log(factor) + 1)


def _inv_freq(rotary: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return rotary.base ** (-np.arange(0, rotary.rotary_dim, 2, dtype=np.float64) / rotary.rotary_dim)


def _table(rotary: Any, inv_freq: np.ndarray[Any, Any], factor: float, attention_factor: float) -> torch.Tensor:
    positions = np.arange(int(rotary.max_position_embeddings * factor), dtype=np.float64)
    angles = np.outer(positions, inv_freq.astype(np.float32).astype(np.float64))
    rows = np.concatenate((np.cos(angles), np.sin(angles)), axis=-1) * attention_factor
    return torch.from_numpy(rows.astype(np.float32)).to(torch.get_default_device())


if __name__ == "__main__":
    from vllm.model_executor.layers.rotary_embedding import linear_scaling_rope, yarn_scaling_rope

    linear_scaling_rope.LinearScalingRotaryEmbedding._compute_cos_sin_cache = _linear
    yarn_scaling_rope.YaRNScalingRotaryEmbedding._compute_cos_sin_cache = _yarn
    main()

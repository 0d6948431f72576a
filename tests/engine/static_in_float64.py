"""Stock vLLM with a static scale, but for its table: angles are taken in float64, where vLLM's are float32 throughout.

Written from the papers: it shares nothing with ours but that frequencies are float32 numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from tests.engine.run_engine import main

_ROWS = 4096  # of each table: more than any test serves


def _linear(rotary: Any) -> torch.Tensor:
    """Chen et al. 2023, arXiv:2306.15595, equation 3."""
    (factor,) = rotary.scaling_factors
    return _table(_inv_freq(rotary, rotary.base) / factor, 1.0)


def _dynamic(rotary: Any) -> torch.Tensor:
    """emozilla 2023: NTK whose stretch follows the length, here that which is served."""
    factor, times = rotary.scaling_factor, rotary.max_position_embeddings / rotary.max_trained_positions
    stretch = factor * times - (factor - 1)
    return _table(_inv_freq(rotary, rotary.base * stretch ** (rotary.rotary_dim / (rotary.rotary_dim - 2))), 1.0)


def _yarn(rotary: Any) -> torch.Tensor:
    """Peng et al. 2023, arXiv:2309.00071: equations 11 to 13, by whole pairs if so configured, and 15."""
    factor = rotary.scaling_factor
    inv_freq = _inv_freq(rotary, rotary.base)
    original = rotary.max_position_embeddings
    if hasattr(
        rotary, "cache_max_position_num"
    ):  # of M-RoPE: vLLM takes four times the original length here, unlike paper and transformers
        original //= 4

    def pair_of(turns: float) -> float:
        wavelength = original / turns
        return rotary.rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rotary.base))

    first, last = pair_of(rotary.beta_fast), pair_of(rotary.beta_slow)
    if getattr(rotary, "truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary.rotary_dim - 1)
    interpolated = np.clip((np.arange(len(inv_freq)) - first) / (last - first), 0, 1)
    blended = (1 - interpolated) * inv_freq + interpolated * inv_freq / factor
    return _table(blended, rotary.mscale)


def _inv_freq(rotary: Any, base: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return base ** (-np.arange(0, rotary.rotary_dim, 2, dtype=np.float64) / rotary.rotary_dim)


def _table(inv_freq: np.ndarray[Any, Any], attention_factor: float) -> torch.Tensor:
    positions = np.arange(_ROWS, dtype=np.float64)
    angles = np.outer(positions, inv_freq.astype(np.float32).astype(np.float64))
    rows = np.concatenate((np.cos(angles), np.sin(angles)), axis=-1) * attention_factor
    return torch.from_numpy(rows.astype(np.float32)).to(torch.get_default_device())


if __name__ == "__main__":
    from vllm.model_executor.layers.rotary_embedding import (
        deepseek_scaling_rope,
        dynamic_ntk_scaling_rope,
        linear_scaling_rope,
        yarn_scaling_rope,
    )

    linear_scaling_rope.LinearScalingRotaryEmbedding._compute_cos_sin_cache = _linear
    dynamic_ntk_scaling_rope.DynamicNTKScalingRotaryEmbedding._compute_cos_sin_cache = _dynamic
    # M-RoPE with YaRN calls the same method.
    yarn_scaling_rope.YaRNScalingRotaryEmbedding._compute_cos_sin_cache = _yarn
    deepseek_scaling_rope.DeepseekScalingRotaryEmbedding._compute_cos_sin_cache = _yarn
    main()

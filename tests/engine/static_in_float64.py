"""Stock vLLM with a static scale, but for its table: angles are taken in float64, where vLLM's are float32 throughout.

Written from the papers: it shares nothing with ours but that frequencies are float32 numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from vllm.config.vllm import get_current_vllm_config

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


def _llama3(rotary: Any) -> torch.Tensor:
    """Meta's reference code of Llama 3.1: slow pairs are slowed down, fast ones are not, others blend."""
    inv_freq = _inv_freq(rotary, rotary.base)
    turns = rotary.orig_max_position * inv_freq / (2 * math.pi)
    low, high = rotary.low_freq_factor, rotary.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1) if high > low else turns > high
    return _table(kept * inv_freq + (1 - kept) * inv_freq / rotary.scaling_factor, 1.0)


def _yarn(rotary: Any) -> torch.Tensor:
    """Peng et al. 2023, arXiv:2309.00071: equations 11 to 13, by whole pairs if so configured, and 15."""
    original = rotary.max_position_embeddings
    if hasattr(rotary, "cache_max_position_num"):  # M-RoPE: vLLM takes a multiple of it
        original = _rope_parameters()["original_max_position_embeddings"]
    inv_freq = _blended(
        rotary,
        rotary.scaling_factor,
        original,
        fast=rotary.beta_fast,
        slow=rotary.beta_slow,
        is_of_whole_pairs=getattr(rotary, "truncate", True),
    )
    return _table(inv_freq, rotary.mscale)


def _proportional(rotary: Any) -> torch.Tensor:
    """Plain RoPE whose last pairs stand still, and whose others YaRN scales."""
    parameters = _rope_parameters()["full_attention"]
    factor = parameters.get("factor", 1.0)
    inv_freq = _inv_freq(rotary, rotary.base)
    if factor > 1:
        original = parameters["original_max_position_embeddings"]
        inv_freq = _blended(rotary, factor, original, fast=32, slow=1, is_of_whole_pairs=True)
    inv_freq[rotary.rope_angles :] = 0
    return _table(inv_freq, 0.1 * math.log(factor) + 1)


def _blended(
    rotary: Any, factor: float, original: int, *, fast: float, slow: float, is_of_whole_pairs: bool
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """YaRN's frequencies.

    Args:
        original: trained length, tokens.
        fast: turns within that length from which on a pair is as before; ``slow``: up to which it is slowed by all of
            ``factor``.
    """
    inv_freq = _inv_freq(rotary, rotary.base)

    def pair_of(turns: float) -> float:
        wavelength = original / turns
        return rotary.rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rotary.base))

    first, last = pair_of(fast), pair_of(slow)
    if is_of_whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary.rotary_dim - 1)
    interpolated = np.clip((np.arange(len(inv_freq)) - first) / (last - first), 0, 1)
    return (1 - interpolated) * inv_freq + interpolated * inv_freq / factor


def _rope_parameters() -> Any:
    return get_current_vllm_config().model_config.hf_text_config.rope_parameters


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
        gemma4_rope,
        linear_scaling_rope,
        llama3_rope,
        yarn_scaling_rope,
    )

    linear_scaling_rope.LinearScalingRotaryEmbedding._compute_cos_sin_cache = _linear
    dynamic_ntk_scaling_rope.DynamicNTKScalingRotaryEmbedding._compute_cos_sin_cache = _dynamic
    llama3_rope.Llama3RotaryEmbedding._compute_cos_sin_cache = _llama3
    gemma4_rope.Gemma4RotaryEmbedding._compute_cos_sin_cache = _proportional
    # M-RoPE with YaRN calls the same method.
    yarn_scaling_rope.YaRNScalingRotaryEmbedding._compute_cos_sin_cache = _yarn
    deepseek_scaling_rope.DeepseekScalingRotaryEmbedding._compute_cos_sin_cache = _yarn
    main()

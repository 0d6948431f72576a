"""Keys as our kernel caches them, against vLLM's own rotary embedding: the bytes that others may read."""

from __future__ import annotations

import torch

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary.rotary_scales import RotaryScales
from posenc_runtime.kernels.rotary.rotary_step import RotaryStep
from tests.tolerance import KEY_TURNED_BY_KERNEL, TABLE_ANGLE_RELATIVE

NUM_TOKENS, HEAD_DIM, BLOCK_SIZE = 40, 64, 16


def test_with_the_factor_on_keys_the_cache_holds_what_vllms_yarn_would_put_there() -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import YaRNScalingRotaryEmbedding

    for is_neox_style in (True, False):
        with set_current_vllm_config(VllmConfig()):
            stock = YaRNScalingRotaryEmbedding(
                HEAD_DIM, HEAD_DIM, 256, 10_000.0, is_neox_style, 4.0, torch.float32, beta_fast=32, beta_slow=1
            )
        assert stock.mscale > 1.1
        generator = torch.Generator().manual_seed(13)
        query, key, value = torch.randn(3, NUM_TOKENS, 2, HEAD_DIM, generator=generator)
        positions = torch.arange(NUM_TOKENS) * 25
        stock_query, stock_key = stock.forward_native(positions, query.flatten(1), key.flatten(1))

        frequencies = Frequencies(stock._compute_inv_freq(4.0), stock.mscale)
        block_scale = torch.zeros(3, dtype=torch.int32)
        scales = RotaryScales.of([frequencies], block_scale, BLOCK_SIZE, is_neox_style, factor_on_keys=True)
        cache = torch.zeros(3, 2, BLOCK_SIZE, 2 * HEAD_DIM)
        ops.rotary_store(RotaryStep(query, key, value, cache, positions, torch.arange(NUM_TOKENS), scales))

        keys = cache.transpose(1, 2).flatten(0, 1)[:NUM_TOKENS, :, :HEAD_DIM]
        relative = KEY_TURNED_BY_KERNEL + TABLE_ANGLE_RELATIVE * positions.max().item()
        for found, expected in ((keys, stock_key), (query, stock_query)):
            assert (found - expected.view_as(found)).abs().max() <= relative * expected.abs().max() * 2**0.5

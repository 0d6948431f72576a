"""vLLM's LongRoPE with a stacked table: short factors for scale 1, long factors for the scales above it.

Stock vLLM uses the long factors for every request if the server serves past the trained length. vLLM's class is no
custom op, so the name under which ``get_rope`` finds it is bound to ours. Decision 52.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.rotary_embedding.phi3_long_rope_scaled_rope import Phi3LongRoPEScaledRotaryEmbedding

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.vllm_adapter.in_worker.rotary import building
from posenc_runtime.vllm_adapter.in_worker.rotary.embedding import by_scale, keep_query_factors, stacked_table
from posenc_runtime.vllm_adapter.in_worker.rotary.rows import make_room_for_rows


class PosencLongRotaryEmbedding(Phi3LongRoPEScaledRotaryEmbedding):
    """Differs from its parent only in the row index: the parent's table serves scale 1, and the parent rotates.

    Where queries turn, the parent stays as it is.
    """

    long_short_cos_sin_cache: Tensor
    posenc_scaled = False
    posenc_fused = False
    posenc_own: Frequencies | None = None
    posenc_multiplies = False
    use_long_rope: bool

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        deployment = building.checked_deployment()
        if deployment is None:
            return
        if deployment.turns_queries:
            of_long = self.long_factor, self.long_mscale
            factors, mscale = of_long if self.use_long_rope else (self.short_factor, self.short_mscale)
            self.posenc_own = Frequencies(self._compute_inv_freq(factors), mscale)
            self.is_neox_style = True
            return
        own = Frequencies(self._compute_inv_freq(self.short_factor), self.short_mscale)
        # vLLM makes the attention factor from the served length.
        made = building.enter(deployment, self, own, is_neox_style=True, has_own_factor=False)
        if made is None:
            return
        self.posenc_scaled = True
        self.posenc_fused = made.is_fused
        self.use_long_rope = False  # the parent would add the trained length to every position
        dtype = self.long_short_cos_sin_cache.dtype
        if made.is_fused:  # a table without rows, so that code which reads it anyway fails
            self.long_short_cos_sin_cache = torch.empty(0, self.rotary_dim, dtype=dtype)
            return
        make_room_for_rows(self)
        keep_query_factors(self, made)
        short = self._compute_cos_sin_cache(
            deployment.scale_set.lengths[0],
            self.short_factor,
            made.frequencies(0).attention_factor,
        )
        self.long_short_cos_sin_cache = stacked_table(made, short.to(dtype))

    forward = by_scale(Phi3LongRoPEScaledRotaryEmbedding.forward)


def substitute() -> None:
    """Make vLLM give this class to models that ask for LongRoPE."""
    rotary_embedding.Phi3LongRoPEScaledRotaryEmbedding = PosencLongRotaryEmbedding

"""RoPE with linear attention (Su et al. 2021, arXiv:2104.09864, section 3.3, equation 19). No weights.

There is no softmax: query m reads value n with the weight ``(R_m f(q)).(R_n f(k))``, over the sum of ``f(q).f(k)``,
with ``f(x) = elu(x) + 1``. The rotation R is in the numerator only, so that the denominator stays above 0; a weight may
be negative. Pairs are neighbours, and the base is 10,000, as in the paper.

Keys are cached as they are. The sums are taken over all cached keys, and not from the fixed-size state that linear
attention allows: results are the same, and a step costs as much as with a softmax.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from posenc_runtime.decoder.attention import exact, mixed, scores
from posenc_runtime.decoder.encoding import PositionEncoding, Prepared
from posenc_runtime.decoder.places import Places
from posenc_runtime.decoder.positions.xpos import rotated
from posenc_runtime.decoder.rules import require_even
from posenc_runtime.decoder.sinusoids import angles


class RopeLinearAttention(PositionEncoding):
    """Linear attention whose numerator has rotated queries and keys."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.head_dim: int = config.head_dim

    @classmethod
    def check(cls, config: Any) -> None:
        require_even("head_dim", config.head_dim, "rope_linear_attention rotates pairs of elements")

    def prepare(self, places: Places, dtype: torch.dtype) -> Prepared:
        """Cosines and sines of queries, then of keys, ``[batch or 1, 1, num_tokens, head_dim // 2]`` each."""
        stands = places.positions[:, :, None] - places.distance
        # A query that reads the key knows where the key stands. Padding, which no token reads, may stand anywhere.
        of_keys = stands.masked_fill(~places.visible, 0).amax(1)
        prepared: list[Tensor] = []
        for positions in (places.positions, of_keys):
            angle = angles(positions, self.head_dim)[:, None]  # rad
            prepared += (angle.cos().to(dtype), angle.sin().to(dtype))
        return tuple(prepared)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, places: Places, prepared: Prepared, scale: float
    ) -> Tensor:
        query, key = (functional.elu(exact(states)) + 1 for states in (query, key))
        query_cos, query_sin, key_cos, key_sin = prepared
        hidden = ~places.visible[:, None]
        weight = scores(rotated(query, query_cos, query_sin), rotated(key, key_cos, key_sin), 1.0)
        whole = scores(query, key, 1.0).masked_fill(hidden, 0).sum(-1, keepdim=True)
        return mixed(weight.masked_fill(hidden, 0) / whole, value)


ENCODING = RopeLinearAttention

"""XPos (Sun et al. 2022, arXiv:2212.10554, section 2.2): rotary, and scores that decay with the distance.

The query at position n is rotated and multiplied by ``zeta_i^(n / xpos_scale_base)``. The key at position m is rotated
and divided by ``zeta_i^(m / xpos_scale_base)``. So pair i of a score decays as ``zeta_i^((n - m) / xpos_scale_base)``
with ``zeta_i = (2i / d + 0.4) / 1.4``. Pairs are neighbours, as in torchscale.

A score depends only on n - m, so positions may be counted from any origin. torchscale counts from the middle of the
present sequence. That origin moves with every token, so torchscale has to cache keys before they are encoded. Here the
origin is ``max_position_embeddings // 2``, which never moves: a cached key stays as it is, and within the trained
length the factors are as small as they can be. Far from the origin the factors would overflow, so such positions are
refused: with a base of 512, from about 18,000 tokens before or after the origin in float32 and bfloat16, and from about
2,300 in float16. Decision 55.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc_runtime.decoder.attention import exact
from posenc_runtime.decoder.encoding import PositionEncoding, Prepared
from posenc_runtime.decoder.places import Places
from posenc_runtime.decoder.rules import require_above, require_even
from posenc_runtime.decoder.sinusoids import angles

GAMMA = 0.4


class Xpos(PositionEncoding):
    """Queries and keys rotated and scaled by their positions, so that scores decay with the distance.

    Settings:
        xpos_scale_base: tokens over which pair i of a score decays by zeta_i.
    """

    defaults: ClassVar = {"xpos_scale_base": 512}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.head_dim: int = config.head_dim
        self.scale_base: float = config.xpos_scale_base
        self.origin: int = config.max_position_embeddings // 2

    @classmethod
    def check(cls, config: Any) -> None:
        require_even("head_dim", config.head_dim, "xpos rotates pairs of elements")
        require_above("xpos_scale_base", config.xpos_scale_base, 0)

    @classmethod
    def longest(cls, config: Any, dtype: torch.dtype) -> int:
        origin, allowed = config.max_position_embeddings // 2, tokens_from_origin(config.xpos_scale_base, dtype)
        return origin + allowed if origin <= allowed else 0

    def prepare(self, places: Places, dtype: torch.dtype) -> Prepared:
        """Cosines, sines and the decay of queries, ``[batch or 1, 1, num_tokens, head_dim // 2]``, float64."""
        pair = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=places.positions.device)
        zeta = (pair + GAMMA * self.head_dim) / ((1 + GAMMA) * self.head_dim)
        decay = zeta ** ((places.positions[..., None] - self.origin) / self.scale_base)
        angle = angles(places.positions, self.head_dim)[:, None]  # rad
        return angle.cos(), angle.sin(), decay[:, None]

    def encode(self, query: Tensor, key: Tensor, places: Places, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """Queries rotated and multiplied by their factors, keys rotated and divided by theirs.

        Raises:
            ValueError: when a position is so far from the origin that its factor would exceed the square root of the
                largest number of the data type in which keys are cached.
        """
        self._refuse_far(places, key.dtype)
        cos, sin, decay = prepared
        return rotated(query, cos * decay, sin * decay), rotated(key, cos / decay, sin / decay)

    def _refuse_far(self, places: Places, dtype: torch.dtype) -> None:
        allowed = tokens_from_origin(self.scale_base, dtype)
        # No position exceeds the number of keys, so that positions are read from the device only if one may be refused.
        if max(self.origin, places.num_keys - self.origin) <= allowed:
            return
        if int((places.positions - self.origin).abs().max()) > allowed:
            raise ValueError(
                f"positions must be at most {allowed} from {self.origin} (half of max_position_embeddings) with "
                f"xpos_scale_base {self.scale_base} and keys of {dtype}, got positions {int(places.positions.min())} "
                f"to {int(places.positions.max())}: shorten the sequence, or use a data type of larger range"
            )


def tokens_from_origin(scale_base: float, dtype: torch.dtype) -> int:
    """Distance from the origin, tokens, at which a factor reaches the square root of the data type's largest number."""
    steepest = -math.log(GAMMA / (1 + GAMMA)) / scale_base  # of all pairs, in each token
    return int(math.log(torch.finfo(dtype).max) / 2 / steepest)


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of neighbouring elements by the pair's angle.

    Args:
        states: ``[batch, num_heads, num_tokens, head_dim]``.
        cos, sin: ``[batch or 1, 1, num_tokens, head_dim // 2]``.

    Returns:
        In the shape and data type of states.
    """
    even, odd = exact(states).reshape(*states.shape[:-1], -1, 2).unbind(-1)
    cos, sin = cos.to(even.dtype), sin.to(even.dtype)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(states.dtype)


ENCODING = Xpos

"""XPos (Sun et al. 2022, arXiv:2212.10554, section 2.2): rotary, and scores that decay with the distance.

Query n is rotated and multiplied with ``zeta_i^(n / xpos_scale_base)``, key m is rotated and divided by the same power
of m, so that pair i of a score decays as ``zeta_i^((n - m) / xpos_scale_base)`` with ``zeta_i = (2i / d + 0.4) / 1.4``.
Pairs are neighbours, as in torchscale.

Only n - m matters, so positions may be counted from anywhere. torchscale counts from the middle of whatever it is
given, which moves with every token, so it has to cache keys that are not encoded yet. Here positions are counted from
``max_position_embeddings // 2``, which never moves: a cached key stays as it is, and within the trained length factors
are as small as they can be. Far from there factors overflow, and such positions are refused: in float32 and bfloat16
from about 18,000 tokens before or after, in float16 from about 2,300, for a base of 512. Decision 55.
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
        xpos_scale_base: tokens over which pair i decays by zeta_i.
    """

    defaults: ClassVar = {"xpos_scale_base": 512}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.head_dim: int = config.head_dim
        self.scale_base: float = config.xpos_scale_base
        self.origin: int = config.max_position_embeddings // 2

    @classmethod
    def check(cls, config: Any) -> None:
        require_even("head_dim", config.head_dim, "xpos rotates pairs")
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
        """Queries rotated and multiplied with their factors, keys rotated and divided by theirs.

        Raises:
            ValueError: when a position is so far from the origin that its factor takes more than half of the exponents
                of the data type in which keys are cached.
        """
        self._refuse_far(places, key.dtype)
        cos, sin, decay = prepared
        return rotated(query, cos * decay, sin * decay), rotated(key, cos / decay, sin / decay)

    def _refuse_far(self, places: Places, dtype: torch.dtype) -> None:
        allowed = tokens_from_origin(self.scale_base, dtype)
        # Lengths bound positions, so that the device is asked only where it may come to a refusal.
        if max(self.origin, places.num_keys - self.origin) <= allowed:
            return
        if int((places.positions - self.origin).abs().max()) > allowed:
            raise ValueError(
                f"positions must be within {allowed} of {self.origin}, half of max_position_embeddings, for xpos with "
                f"xpos_scale_base {self.scale_base} and keys of {dtype}, got {int(places.positions.min())} to "
                f"{int(places.positions.max())}; shorten the text, or use keys of a wider range"
            )


def tokens_from_origin(scale_base: float, dtype: torch.dtype) -> int:
    """How far from the origin the factors take half of the exponents of a data type."""
    steepest = -math.log(GAMMA / (1 + GAMMA)) / scale_base  # of all pairs, in each token
    return int(math.log(torch.finfo(dtype).max) / 2 / steepest)


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbouring pairs turned by their angle; in the data type that they came in.

    Args:
        states: ``[batch, num_heads, num_tokens, head_dim]``.
        cos, sin: ``[batch or 1, 1, num_tokens, head_dim // 2]``.
    """
    even, odd = exact(states).reshape(*states.shape[:-1], -1, 2).unbind(-1)
    cos, sin = cos.to(even.dtype), sin.to(even.dtype)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(states.dtype)


ENCODING = Xpos

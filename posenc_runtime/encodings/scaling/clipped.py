"""Clipped RoPE (Li et al. 2026, arXiv:2602.05258, "CoPE"): the slowest pairs are faded out.

The paper's short name is not used here, because it also stands for contextual position encoding (arXiv:2405.18719). The
paper trains with the clipped frequencies. Used on a checkpoint that was not, it is an experiment.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipped:
    """Multiplies the frequencies of the slowest pairs by half a period of a cosine, from 1 down to 0.

    The same at every scale above 1.

    Attributes:
        clip_low_n: how many of the slowest pairs are faded out; None for 5 of 16 pairs, which are the 20 of 64 in the
            authors' code.
    """

    rope_type: ClassVar[str] = "clipped"
    own_rope_types: ClassVar[tuple[str, ...]] = ("default",)
    clip_low_n: int | None = None

    def __post_init__(self) -> None:
        if self.clip_low_n is not None and self.clip_low_n < 2:
            raise ValueError(f"clip_low_n must be at least 2, got {self.clip_low_n}")

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        """Plain RoPE's frequencies at scale 1, faded out at all others.

        Raises:
            ValueError: when fewer pairs are rotated than are faded out.
        """
        import torch

        inv_freq, pairs = Default().frequencies(spec, scale).inv_freq, spec.num_turning_pairs
        if scale == 1:
            return Frequencies(inv_freq)
        clipped = max(2, round(pairs * 5 / 16)) if self.clip_low_n is None else self.clip_low_n
        if clipped > pairs:
            raise ValueError(f"clip_low_n must be at most {pairs}, the number of rotated pairs, got {clipped}")
        fade = (1 + torch.linspace(0, torch.pi, clipped, dtype=torch.float64).cos()) / 2
        fade[-1] = 0.0  # the cosine of a rounded pi is not exactly -1
        inv_freq[pairs - clipped : pairs] *= fade
        return Frequencies(inv_freq)


SCALING = Clipped

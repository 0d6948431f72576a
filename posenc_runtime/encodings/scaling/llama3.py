"""Llama 3.1's rotation (Grattafiori et al. 2024, arXiv:2407.21783; Meta's reference code), and the same for longer.

Its checkpoints, and those of Llama 3.2 and 3.3, were tuned with slow pairs slowed down by ``factor``, at every length:
that is their own rotation, scale 1. A scale above 1 slows the same pairs by that much more. Decision 53.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3:
    """Pairs that turn often within ``old_context_len`` are left alone, slow ones divided, those between are blended.

    Attributes:
        factor: what slow pairs are divided by at scale 1.
        low_freq_factor: turns within ``old_context_len`` below which a pair is slow.
        high_freq_factor: turns above which it is left alone.
        old_context_len: tokens; what Hugging Face calls ``original_max_position_embeddings`` here. It is not the
            trained length but that of the model before it was tuned for longer texts.
    """

    rope_type: ClassVar[str] = "llama3"
    own_rope_type: ClassVar[str] = "llama3"
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    old_context_len: int | None = None

    def __post_init__(self) -> None:
        if self.factor is not None and self.factor < 1:
            raise ValueError(f"factor must be at least 1, got {self.factor}")
        for name in ("low_freq_factor", "high_freq_factor", "old_context_len"):
            if (given := getattr(self, name)) is not None and given <= 0:
                raise ValueError(f"{name} must be greater than 0, got {given}")
        low, high = self.low_freq_factor, self.high_freq_factor
        if low is not None and high is not None and high <= low:
            raise ValueError(f"high_freq_factor must exceed low_freq_factor {low}, got {high}")

    @classmethod
    def of_checkpoint(
        cls, rope_parameters: Mapping[str, Any], max_position_embeddings: int
    ) -> tuple[int, dict[str, Any]]:
        """Trained length, tokens, and what the checkpoint says of the parameters above."""
        said = {name: rope_parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor")}
        return max_position_embeddings, said | {"old_context_len": rope_parameters["original_max_position_embeddings"]}

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        """Plain RoPE's, those of slow pairs divided by ``factor * scale``, and a blend of both between.

        Raises:
            ValueError: when a parameter is missing, or the trained length is the one before the tuning.
        """
        factor, low, high, before = self._complete()
        if spec.original_max_position_embeddings <= before:
            raise ValueError(
                f"original_max_position_embeddings must exceed old_context_len {before}, for it is the length that the "
                f"checkpoint was tuned to, got {spec.original_max_position_embeddings}: leave it out, the checkpoint "
                "says it"
            )
        inv_freq = Default().frequencies(spec, scale).inv_freq
        turns = before * inv_freq / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return Frequencies(inv_freq * kept + inv_freq / (factor * scale) * (1 - kept))

    def _complete(self) -> tuple[float, float, float, int]:
        factor, low, high, before = self.factor, self.low_freq_factor, self.high_freq_factor, self.old_context_len
        if factor is None or low is None or high is None or before is None:
            missing = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) is None]
            raise ValueError(f"{', '.join(missing)} must be given where the checkpoint's configuration is not read")
        return factor, low, high, before


SCALING = Llama3

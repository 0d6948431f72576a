"""Llama 3.1's rotation (Grattafiori et al. 2024, arXiv:2407.21783; Meta's reference code), extended to longer texts.

The checkpoints of Llama 3.1, 3.2, 3.3 and 4 were tuned with a rotation that divides the frequencies of slow pairs by
``factor``, at every length. That is their own rotation, scale 1. At scale s the same frequencies are divided by
``factor * s``. Decision 53.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, OwnRotation, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3:
    """Keeps the frequencies of fast pairs, divides those of slow pairs, and blends both for the pairs between.

    A pair is fast or slow by its number of turns within ``old_context_len`` tokens. Where ``low_freq_factor`` equals
    ``high_freq_factor`` (Llama 4), no pair is between.

    Attributes:
        factor: divides the frequencies of slow pairs at scale 1.
        low_freq_factor: a pair with fewer turns is slow.
        high_freq_factor: a pair with more turns is fast.
        old_context_len: tokens; the key ``original_max_position_embeddings`` of Hugging Face's ``llama3``. This is the
            length before the model was tuned for longer texts, not the trained length.
    """

    rope_type: ClassVar[str] = "llama3"
    own_rope_types: ClassVar[tuple[str, ...]] = ("llama3",)
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
        if low is not None and high is not None and high < low:
            raise ValueError(f"high_freq_factor must be at least low_freq_factor {low}, got {high}")

    @classmethod
    def of_checkpoint(cls, rope_parameters: Mapping[str, Any], max_position_embeddings: int) -> OwnRotation:
        """Read the lengths and the method's parameters from a checkpoint's configuration."""
        said = {name: rope_parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor")}
        said["old_context_len"] = rope_parameters["original_max_position_embeddings"]
        return OwnRotation(max_position_embeddings, said)

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        """Plain RoPE's frequencies for fast pairs, divided by ``factor * scale`` for slow pairs, and a blend between.

        Raises:
            ValueError: when a parameter is missing, or the trained length is not above ``old_context_len``.
        """
        factor, low, high, before = self._complete()
        if spec.original_max_position_embeddings <= before:
            raise ValueError(
                f"original_max_position_embeddings must exceed old_context_len {before}, the length before the "
                f"checkpoint was tuned for longer texts, got {spec.original_max_position_embeddings}: leave "
                "original_max_position_embeddings out, and the checkpoint's own is used"
            )
        inv_freq = Default().frequencies(spec, scale).inv_freq
        turns = before * inv_freq / (2 * math.pi)
        kept = (turns > high).double() if low == high else ((turns - low) / (high - low)).clamp(0, 1)
        return Frequencies(inv_freq * kept + inv_freq / (factor * scale) * (1 - kept))

    def _complete(self) -> tuple[float, float, float, int]:
        factor, low, high, before = self.factor, self.low_freq_factor, self.high_freq_factor, self.old_context_len
        if factor is None or low is None or high is None or before is None:
            missing = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) is None]
            raise ValueError(f"{', '.join(missing)} must be given where the checkpoint's configuration is not read")
        return factor, low, high, before


SCALING = Llama3

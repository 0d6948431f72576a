"""LongRoPE (Ding et al. 2024, arXiv:2402.13753), as the checkpoints say that were tuned with it (Phi-3, Phi-4-mini).

They hold two lists of factors, one for each pair: the short ones are their own rotation, up to the trained length, and
the long ones that of every longer request. So one scale above 1 is enough: the longest length by the trained one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongRope:
    """Each pair is slowed by a number of its own, and the attention factor is that of the longest length at any scale.

    Attributes:
        short_factor, long_factor: of each pair, ``[rotary_dim // 2]``; what its frequency is divided by at scale 1, and
            at all others.
        attention_factor: the checkpoint's own, ``sqrt(1 + ln(factor) / ln(trained length))`` (section 4.1).
        factor: longest length by trained length, where the attention factor is to be made of it.
        short_mscale, long_mscale: replace it at scale 1, and at all others.
    """

    rope_type: ClassVar[str] = "longrope"
    own_rope_type: ClassVar[str] = "longrope"
    short_factor: Sequence[float] = ()
    long_factor: Sequence[float] = ()
    attention_factor: float | None = None
    factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None

    def __post_init__(self) -> None:
        for name in ("short_factor", "long_factor"):
            if (smallest := min(getattr(self, name), default=1.0)) <= 0:
                raise ValueError(f"{name} must hold numbers greater than 0, got {smallest}")
        if self.factor is not None and self.factor < 1:
            raise ValueError(f"factor must be at least 1, got {self.factor}")
        if self.factor is not None and self.attention_factor is not None:
            raise ValueError(
                f"factor must be left out where attention_factor {self.attention_factor:g} is given or the "
                f"checkpoint's, for nothing else is made of it, got {self.factor}"
            )
        for name in ("attention_factor", "short_mscale", "long_mscale"):
            if (given := getattr(self, name)) is not None and given <= 0:
                raise ValueError(f"{name} must be greater than 0, got {given}")

    @classmethod
    def of_checkpoint(
        cls, rope_parameters: Mapping[str, Any], max_position_embeddings: int
    ) -> tuple[int, dict[str, Any]]:
        """Trained length, tokens, and what the checkpoint says of the parameters above, with its own attention factor.

        Raises:
            ValueError: when ``factor`` or ``attention_factor`` do not follow from its lengths.
        """
        trained = rope_parameters["original_max_position_embeddings"]
        said = {name: value for name, value in rope_parameters.items() if value is not None}
        # Made here, of the length that the checkpoint was trained on: a deployment may give a shorter one.
        factor = max_position_embeddings / trained
        ours = _attention_factor(factor, trained)
        theirs = _attention_factor(said.pop("factor", factor), trained)
        theirs = said.get("attention_factor", theirs)
        if not math.isclose(ours, theirs, rel_tol=1e-6) and not {"short_mscale", "long_mscale"} <= said.keys():
            raise ValueError(
                f"factor and attention_factor of a checkpoint must follow from its lengths, which give an attention "
                f"factor of {ours:g}, got {theirs:g}: not every engine reads them. If it was tuned with them, let its "
                "configuration say short_mscale and long_mscale"
            )
        said["attention_factor"] = ours
        return trained, {field.name: said[field.name] for field in dataclasses.fields(cls) if field.name in said}

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        """Plain RoPE's, divided pair by pair by the short factors at scale 1 and by the long ones at all others.

        Raises:
            ValueError: when there is not one factor for each pair, or nobody says what the attention factor is.
        """
        import torch

        name, mscale = ("short_factor", self.short_mscale) if scale == 1 else ("long_factor", self.long_mscale)
        factors = getattr(self, name)
        if len(factors) != spec.rotary_dim // 2:
            raise ValueError(f"{name} must hold {spec.rotary_dim // 2} numbers, one for each pair, got {len(factors)}")
        inv_freq = Default().frequencies(spec, scale).inv_freq / torch.tensor(factors, dtype=torch.float64)
        if mscale is None:
            mscale = self.attention_factor
        if mscale is None:
            if self.factor is None:
                raise ValueError(
                    "factor must be given where attention_factor is not: the longest length by the trained one"
                )
            mscale = _attention_factor(self.factor, spec.original_max_position_embeddings)
        return Frequencies(inv_freq, mscale)


def _attention_factor(factor: float, trained: int) -> float:
    return math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(trained))


SCALING = LongRope

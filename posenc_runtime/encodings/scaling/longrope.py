"""LongRoPE (Ding et al. 2024, arXiv:2402.13753): a factor for each pair.

The configuration of a checkpoint that was tuned with it (Phi-3, Phi-4-mini) holds two lists. The short factors give the
rotation up to the trained length, the long factors the rotation of every longer request. So one scale above 1 is
enough: the longest length divided by the trained length.

For a checkpoint that rotates plainly, the user gives the long factors, such as those that LongRoPE2 (Shang et al. 2025,
arXiv:2502.20082) searches for it. Scale 1 stays plain.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, OwnRotation, RotarySpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongRope:
    """Each pair's frequency is divided by a factor of its own. One attention factor holds at every scale.

    Attributes:
        short_factor: divides each pair's frequency at scale 1, ``[rotary_dim // 2]``; empty where the checkpoint
            rotates plainly.
        long_factor: divides each pair's frequency at all other scales, ``[rotary_dim // 2]``.
        attention_factor: the checkpoint's own, ``sqrt(1 + ln(factor) / ln(trained length))`` (section 4.1).
        factor: the longest length divided by the trained length; the attention factor is computed from it if none is
            given. Where the checkpoint rotates plainly, each scale above 1 is a factor of its own.
        short_mscale: replaces the attention factor at scale 1.
        long_mscale: replaces the attention factor at all other scales.
    """

    rope_type: ClassVar[str] = "longrope"
    own_rope_types: ClassVar[tuple[str, ...]] = ("longrope", "default")
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
                f"factor must be left out, because the settings or the checkpoint give attention_factor "
                f"{self.attention_factor:g}, and factor only serves to compute it, got {self.factor}"
            )
        for name in ("attention_factor", "short_mscale", "long_mscale"):
            if (given := getattr(self, name)) is not None and given <= 0:
                raise ValueError(f"{name} must be greater than 0, got {given}")

    @classmethod
    def of_checkpoint(cls, rope_parameters: Mapping[str, Any], max_position_embeddings: int) -> OwnRotation:
        """Read the lengths and the method's parameters from a checkpoint's configuration.

        Raises:
            ValueError: when the checkpoint's ``factor`` or ``attention_factor`` does not follow from its lengths.
        """
        trained = rope_parameters["original_max_position_embeddings"]
        said = {name: value for name, value in rope_parameters.items() if value is not None}
        # Computed from the checkpoint's trained length, because a deployment may set a shorter one.
        factor = max_position_embeddings / trained
        ours = _attention_factor(factor, trained)
        theirs = _attention_factor(said.pop("factor", factor), trained)
        theirs = said.get("attention_factor", theirs)
        if not math.isclose(ours, theirs, rel_tol=1e-6) and not {"short_mscale", "long_mscale"} <= said.keys():
            raise ValueError(
                f"the checkpoint's factor and attention_factor must agree with its lengths, which give an attention "
                f"factor of {ours:g}, got {theirs:g}: not every engine reads these two keys. If the checkpoint was "
                "tuned with them, add short_mscale and long_mscale to its configuration"
            )
        said["attention_factor"] = ours
        parameters = {field.name: said[field.name] for field in dataclasses.fields(cls) if field.name in said}
        return OwnRotation(trained, parameters, max_position_embeddings)

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        """Plain RoPE's frequencies, divided by the short factors at scale 1 and by the long factors at all others.

        Raises:
            ValueError: when there is not one factor for each pair, or no parameter gives the attention factor.
        """
        import torch

        inv_freq, is_plain = Default().frequencies(spec, scale).inv_freq, not self.short_factor
        if is_plain and scale == 1:
            return Frequencies(inv_freq)
        name, mscale = ("short_factor", self.short_mscale) if scale == 1 else ("long_factor", self.long_mscale)
        factors = getattr(self, name)
        if len(factors) != spec.rotary_dim // 2:
            raise ValueError(f"{name} must hold {spec.rotary_dim // 2} numbers, one for each pair, got {len(factors)}")
        if mscale is None:
            mscale = self.attention_factor
        if mscale is None:
            factor = scale if self.factor is None and is_plain else self.factor
            if factor is None:
                raise ValueError(
                    "factor or attention_factor must be given, got neither: set factor to the longest length divided "
                    "by the trained length"
                )
            mscale = _attention_factor(factor, spec.original_max_position_embeddings)
        return Frequencies(inv_freq / torch.tensor(factors, dtype=torch.float64), mscale)


def _attention_factor(factor: float, trained: int) -> float:
    return math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(trained))


SCALING = LongRope

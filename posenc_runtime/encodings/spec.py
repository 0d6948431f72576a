"""A rotary encoding as data: the checkpoint's spec, a method's frequencies, and the protocol of methods."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

# Methods import torch only where they compute, so that a command can check parameters without the long import.
if TYPE_CHECKING:
    from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Frequencies:
    """What a rotary method computes for one scale.

    Attributes:
        inv_freq: rad / token, float64, ``[rotary_dim // 2]``. Those past the spec's ``num_turning_pairs`` are 0.
        attention_factor: multiplies cos and sin, and so multiplies scores by its square.
    """

    inv_freq: Tensor
    attention_factor: float = 1.0

    @property
    def wavelengths(self) -> tuple[float, ...]:
        """Tokens for a full turn, of each pair that turns, the fastest first."""
        return tuple(2 * math.pi / each for each in self.inv_freq.tolist() if each > 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotarySpec:
    """The rotary encoding a checkpoint was trained with.

    Attributes:
        rotary_dim: width of the rotated part of a head; even.
        rope_theta: base of the frequencies.
        original_max_position_embeddings: trained length, tokens.
        num_rotated_pairs: the pairs past this many have frequency 0 (``proportional`` in Hugging Face's
            configurations: Gemma 4); None where all are rotated. The exponents of frequencies are over ``rotary_dim``
            all the same.

    Raises:
        ValueError: when a value is out of range.
    """

    rotary_dim: int
    rope_theta: float
    original_max_position_embeddings: int
    num_rotated_pairs: int | None = None

    def __post_init__(self) -> None:
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ValueError(f"rotary_dim must be even and at least 2, got {self.rotary_dim}")
        if self.rope_theta <= 1:
            raise ValueError(f"rope_theta must be greater than 1, got {self.rope_theta}")
        if self.original_max_position_embeddings < 1:
            raise ValueError(
                f"original_max_position_embeddings must be at least 1, got {self.original_max_position_embeddings}"
            )
        if not 1 <= self.num_turning_pairs <= self.rotary_dim // 2:
            raise ValueError(
                f"num_rotated_pairs must be from 1 to {self.rotary_dim // 2}, half of rotary_dim, got "
                f"{self.num_rotated_pairs}"
            )

    @property
    def num_turning_pairs(self) -> int:
        """How many pairs have a frequency above 0. They are the first ones of ``inv_freq``."""
        return self.rotary_dim // 2 if self.num_rotated_pairs is None else self.num_rotated_pairs


class Scaling(Protocol):
    """One context-extension method. Each file of ``scaling/`` holds one, a frozen dataclass.

    The fields are the method's parameters under Hugging Face's names. A ``factor`` among them is the checkpoint's own;
    that of a request is its scale.

    Attributes:
        rope_type: the method's name.
        own_rope_types: each ``rope_type`` of the checkpoints that the method is for. At scale 1 the method gives these
            checkpoints' own rotation.
    """

    rope_type: ClassVar[str]
    own_rope_types: ClassVar[tuple[str, ...]]

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        """Frequencies of a request that may grow to ``scale`` times the trained length; ``scale`` is at least 1."""
        ...


class OwnRotation(NamedTuple):
    """What a checkpoint's configuration says of the method that it was trained with.

    Attributes:
        trained_length: tokens.
        parameters: of the method, by name.
        tuned_length: tokens; the longest request that a rotation past scale 1 was searched for. None where the method
            computes a rotation for every scale.
    """

    trained_length: int
    parameters: dict[str, Any]
    tuned_length: int | None = None


class OwnScaling(Scaling, Protocol):
    """A method that checkpoints were trained with. Such checkpoints have the method's name as their ``rope_type``.

    Their own rotation is scale 1, even where it is a scaled one. A larger scale comes on top of it.
    """

    @classmethod
    def of_checkpoint(cls, rope_parameters: Mapping[str, Any], max_position_embeddings: int) -> OwnRotation:
        """Read the lengths and the method's parameters from a checkpoint's configuration.

        Args:
            rope_parameters: as Hugging Face writes them.
            max_position_embeddings: as the checkpoint states it. In some checkpoints this is the scaled length, not
                the trained one.
        """
        ...

"""YaRN (Peng et al. 2023, arXiv:2309.00071, sections 3.2 to 3.4), with Hugging Face's parameters.

For checkpoints that rotate plainly, and for those that were tuned with YaRN (gpt-oss, DeepSeek, Kimi). These have a
factor of their own: that is scale 1, and scale s is YaRN with ``factor * s``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from posenc_runtime.encodings.scaling.default import Default
from posenc_runtime.encodings.spec import Frequencies, OwnRotation, RotarySpec

# What vLLM calls YaRN in models that build it with the class for DeepSeek.
_DEEPSEEK = ("deepseek_yarn", "deepseek_llama_scaling")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Yarn:
    """Keeps the frequencies of fast pairs, interpolates those of slow pairs, and blends both for the pairs between.

    A pair is fast or slow by its number of turns within ``old_context_len`` tokens.

    Attributes:
        factor: divides the frequencies of slow pairs at scale 1; 1 for checkpoints that rotate plainly.
        old_context_len: tokens; the key ``original_max_position_embeddings`` of Hugging Face's ``yarn``. This is the
            length before the model was tuned for longer texts. None takes the trained length, which is the same where
            a checkpoint rotates plainly.
        beta_fast: a pair with more turns keeps its frequency.
        beta_slow: a pair with fewer turns is fully interpolated.
        attention_factor: with ``factor`` 1, replaces the paper's ``0.1 ln s + 1`` (equation 22) at every scale above 1.
            With a larger ``factor``, it is the attention factor of scale 1, and grows with the scale as the paper's
            does.
        mscale, mscale_all_dim: together, DeepSeek's form of the attention factor.
        truncate: whether the first and the last pair of the blend are rounded to whole numbers.
    """

    rope_type: ClassVar[str] = "yarn"
    own_rope_types: ClassVar[tuple[str, ...]] = ("default", "yarn")
    factor: float = 1.0
    old_context_len: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1, got {self.factor}")
        if self.old_context_len is not None and self.old_context_len < 1:
            raise ValueError(f"old_context_len must be at least 1, got {self.old_context_len}")
        if self.factor > 1 and self.old_context_len is None:
            raise ValueError(
                "factor must come with old_context_len, because both say how a checkpoint was tuned, got "
                f"{self.factor}: if you mean the scale of long requests, leave factor out, and list the scale in "
                f"scales, as in [1, {self.factor:g}]"
            )
        if self.beta_slow <= 0:
            raise ValueError(f"beta_slow must be greater than 0, got {self.beta_slow}")
        if self.beta_fast < self.beta_slow:
            raise ValueError(f"beta_fast must be at least beta_slow {self.beta_slow}, got {self.beta_fast}")
        if self.attention_factor is not None and self.attention_factor <= 0:
            raise ValueError(f"attention_factor must be greater than 0, got {self.attention_factor}")
        mscales = (self.mscale, self.mscale_all_dim)
        if (smallest := min((mscale for mscale in mscales if mscale is not None), default=0.0)) < 0:
            raise ValueError(f"mscale and mscale_all_dim must be at least 0, got {smallest}")
        is_replaced = self.attention_factor is not None and self.factor == 1
        if mscales != (None, None) and (None in mscales or is_replaced):
            raise ValueError(
                "mscale and mscale_all_dim must be given together, and without attention_factor, got mscale "
                f"{self.mscale}, mscale_all_dim {self.mscale_all_dim} and attention_factor {self.attention_factor}"
            )

    @classmethod
    def of_checkpoint(cls, rope_parameters: Mapping[str, Any], max_position_embeddings: int) -> OwnRotation:
        """Read the lengths and the method's parameters from a checkpoint's configuration.

        The keys are read as the class of vLLM reads them that the ``rope_type`` in ``rope_parameters`` stands for. The
        class for ``yarn`` ignores ``mscale`` and ``mscale_all_dim`` unless both are above 0. The class for
        ``deepseek_yarn`` and ``deepseek_llama_scaling`` takes 1 and 0 where they are missing, and ignores
        ``attention_factor`` and ``truncate``.

        Some checkpoints state the length that they were tuned to as ``max_position_embeddings``, others the one before.
        """
        said = {name: value for name, value in rope_parameters.items() if value is not None}
        factor, before = said["factor"], said["original_max_position_embeddings"]
        read = ["factor", "beta_fast", "beta_slow"]
        mscales = {name: said.get(name, default) for name, default in (("mscale", 1.0), ("mscale_all_dim", 0.0))}
        if said.get("rope_type") not in _DEEPSEEK:
            read += ["attention_factor", "truncate"]
            mscales = mscales if said.get("mscale") and said.get("mscale_all_dim") else {}
        parameters = {name: said[name] for name in read if name in said} | {"old_context_len": before} | mscales
        return OwnRotation(max(max_position_embeddings, math.floor(factor * before)), parameters)

    def frequencies(self, spec: RotarySpec, scale: float) -> Frequencies:
        """Plain RoPE's frequencies for fast pairs, divided by ``factor * scale`` for slow pairs, and a blend between.

        Raises:
            ValueError: when ``factor`` is above 1, and the trained length is not above ``old_context_len``.
        """
        import torch

        before, factor = self.old_context_len or spec.original_max_position_embeddings, self.factor * scale
        if self.factor > 1 and spec.original_max_position_embeddings <= before:
            raise ValueError(
                f"original_max_position_embeddings must exceed old_context_len {before}, because it is the length that "
                f"the checkpoint was tuned to, got {spec.original_max_position_embeddings}: leave it out, and the "
                "checkpoint's own is used"
            )
        inv_freq = Default().frequencies(spec, scale).inv_freq
        if factor == 1:
            return Frequencies(inv_freq)
        low, high = band(spec, before, self.beta_fast, self.beta_slow, truncate=self.truncate)
        if low == high:
            high += 0.001
        pair = torch.arange(spec.rotary_dim // 2, dtype=torch.float64)
        interpolated = ((pair - low) / (high - low)).clamp(0, 1)
        return Frequencies(
            inv_freq * (1 - interpolated) + inv_freq / factor * interpolated, self._attention_factor(scale)
        )

    def softmax_factor(self, scale: float) -> float:
        """What DeepSeek's form of YaRN multiplies the softmax scale by, beside the attention factor of each vector.

        DeepSeek-V2, arXiv:2405.04434, section 3.1.4; 1 where ``mscale_all_dim`` is not given.
        """
        return _mscale(self.factor * scale, self.mscale_all_dim or 0.0) ** 2

    def _attention_factor(self, scale: float) -> float:
        """The attention factor of a scale.

        A checkpoint's ``attention_factor`` says how it was tuned, and so holds at scale 1. YaRN's formula says by how
        much the entropy of attention grows with the length. So past the tuned length, the checkpoint's is multiplied by
        what the formula gives for the whole factor, over what it gives for the checkpoint's.
        """
        if self.attention_factor is None:
            return self._formula(self.factor * scale)
        if self.factor == 1:
            return self.attention_factor
        return self.attention_factor * (self._formula(self.factor * scale) / self._formula(self.factor))

    def _formula(self, factor: float) -> float:
        if self.mscale is None or self.mscale_all_dim is None:
            return _mscale(factor, 1.0)
        return _mscale(factor, self.mscale) / _mscale(factor, self.mscale_all_dim)


def band(
    spec: RotarySpec, length: int, beta_fast: float, beta_slow: float, *, truncate: bool = True
) -> tuple[float, float]:
    """The pairs between fast and slow ones: the first and the last, as numbers of pairs (section 3.2).

    Args:
        length: tokens; a pair is fast or slow by its number of turns within them.
        beta_fast: turns of the first pair.
        beta_slow: turns of the last pair.
        truncate: round the first one down and the last one up.
    """
    low, high = _pair_turning(spec, length / beta_fast), _pair_turning(spec, length / beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, spec.rotary_dim - 1)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0


def _pair_turning(spec: RotarySpec, wavelength: float) -> float:
    """Index of the pair that turns once in ``wavelength`` tokens (equation 17, solved for the pair)."""
    return spec.rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(spec.rope_theta))


SCALING = Yarn

"""RoPE (Su et al. 2021, arXiv:2104.09864) and the scalings of ``encodings.scaling``.

As in Llama, a pair is one element of the first half of a head and one of the second. A scaling applies at its
``factor`` to every token, however long the sequence is. Keys are cached rotated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc_runtime.decoder.attention import exact
from posenc_runtime.decoder.encoding import PositionEncoding, Prepared
from posenc_runtime.decoder.places import Places
from posenc_runtime.decoder.rules import require_at_least, require_even, require_one_of
from posenc_runtime.encodings.scaling import available, from_parameters, method
from posenc_runtime.encodings.spec import Frequencies, RotarySpec

# Keys that are not parameters of a method, but belong to the `RotarySpec` or are the scale.
OF_THE_SPEC = ("rope_type", "rope_theta", "original_max_position_embeddings", "factor")


class Rope(PositionEncoding):
    """Queries and keys rotated by their positions, at the frequencies that ``rope_parameters`` describe.

    Settings:
        rope_parameters: as in transformers. ``rope_type`` is a method of ``encodings.scaling`` whose ``factor`` is the
            scale.
    """

    defaults: ClassVar = {"rope_parameters": {"rope_type": "default"}}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.head_dim: int = config.head_dim
        self.max_position_embeddings: int = config.max_position_embeddings
        self.rope_parameters: Mapping[str, Any] = config.rope_parameters

    @classmethod
    def check(cls, config: Any) -> None:
        require_even("head_dim", config.head_dim, "rope rotates pairs of elements")
        frequencies(config.rope_parameters, config.head_dim, config.max_position_embeddings)

    def prepare(self, places: Places, dtype: torch.dtype) -> Prepared:
        """Cosines and sines, ``[batch or 1, 1, num_tokens, head_dim // 2]``."""
        found = frequencies(self.rope_parameters, self.head_dim, self.max_position_embeddings)
        # inv_freq is rounded to float32 and multiplied with the position in float64, as in `encodings.table`.
        inv_freq = found.inv_freq.float().double().to(places.positions.device)
        angle = (places.positions[..., None].double() * inv_freq)[:, None]  # rad
        return (angle.cos() * found.attention_factor).to(dtype), (angle.sin() * found.attention_factor).to(dtype)

    def encode(self, query: Tensor, key: Tensor, places: Places, prepared: Prepared) -> tuple[Tensor, Tensor]:
        cos, sin = prepared
        return rotated(query, cos, sin), rotated(key, cos, sin)


def frequencies(rope_parameters: Mapping[str, Any], head_dim: int, max_position_embeddings: int) -> Frequencies:
    """The frequencies that ``rope_parameters`` describe: those of a scaling at the scale ``factor``, or plain RoPE's.

    Raises:
        ValueError: when the method is unknown, uses ``factor`` for something other than the scale, has no such
            parameter, or refuses a value.
    """
    rope_type = rope_parameters.get("rope_type", "default")
    require_one_of("rope_type in rope_parameters", rope_type, _scaled_by_factor())
    if (rope_type == "default") == ("factor" in rope_parameters):
        raise ValueError(
            f"factor in rope_parameters must be {'left out' if rope_type == 'default' else 'given'} with rope_type "
            f"{rope_type!r}, got {rope_parameters}"
        )
    factor = rope_parameters.get("factor", 1.0)
    require_at_least("factor in rope_parameters", factor, 1)
    try:
        scaling = from_parameters(rope_type, {k: v for k, v in rope_parameters.items() if k not in OF_THE_SPEC})
    except TypeError as error:
        raise ValueError(
            f"rope_parameters must have the parameters of rope_type {rope_type!r} and no others, got "
            f"{rope_parameters}: {error}"
        ) from error
    spec = RotarySpec(
        rotary_dim=head_dim,
        rope_theta=rope_parameters.get("rope_theta", 10000.0),
        original_max_position_embeddings=rope_parameters.get(
            "original_max_position_embeddings", max_position_embeddings
        ),
    )
    return scaling.frequencies(spec, factor)


def _scaled_by_factor() -> list[str]:
    """The methods for plain RoPE whose scale is Hugging Face's ``factor``. That of the two left out is no scale."""
    is_other = {"dynamic", "longrope"}
    return [name for name in available() if "default" in method(name).own_rope_types and name not in is_other]


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of an element of a head's first half and one of its second half by the pair's angle.

    Args:
        states: ``[batch, num_heads, num_tokens, head_dim]``.
        cos, sin: ``[batch or 1, 1, num_tokens, head_dim // 2]``.

    Returns:
        In the shape and data type of states.
    """
    first, second = exact(states).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(states.dtype)


ENCODING = Rope

"""ALiBi (Press, Smith and Lewis 2022, arXiv:2108.12409, section 3), and the same over the square root of the distance.

Section 3 adds `m * [-(i - 1), ..., -2, -1, 0]` to the scores of query `i`. Its footnote 10: the bias is not multiplied
by the scaling factor of the dot product. It gives slopes for numbers of heads that are powers of two; for others they
come from `get_slopes` in the authors' repository (ofirpress/attention_with_linear_biases,
fairseq/models/transformer.py).

The square root has no paper that we know of. It is what the released Step-Audio models compute (`build_alibi_cache` in
modeling_step1.py): the same slopes times `-sqrt(i - j)`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tests.references.attention import causal_attention, distances


def alibi_slopes(num_heads: int) -> list[float]:
    """The slope of every head.

    For a power of two the geometric sequence that starts at 2^(-8/n) with that ratio. For any other number those of
    the largest power of two below it, then of the sequence twice as long the first, the third, the fifth and so on.
    """
    power = 1
    while 2 * power <= num_heads:
        power *= 2
    slopes = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    twice_as_many = [2.0 ** (-8 * (head + 1) / (2 * power)) for head in range(2 * power)]
    return slopes + twice_as_many[::2][: num_heads - power]


def alibi_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, slopes: Sequence[float]) -> Tensor:
    """Attention with a bias that falls linearly with the distance; one slope for each query head."""

    def score(head: int, position: int, q: Tensor, keys: Tensor) -> Tensor:
        return scale * (keys @ q) - slopes[head] * distances(position)

    return causal_attention(query, key, value, score)


def alibi_sqrt_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, slopes: Sequence[float]) -> Tensor:
    """Attention with a bias that falls with the square root of the distance."""

    def score(head: int, position: int, q: Tensor, keys: Tensor) -> Tensor:
        return scale * (keys @ q) - slopes[head] * distances(position).sqrt()

    return causal_attention(query, key, value, score)

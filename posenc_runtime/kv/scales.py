"""The ordered scales of a deployment, and how their tables are stacked into one."""

from __future__ import annotations

import bisect
import dataclasses
import fractions
import functools
import itertools
import math
from collections.abc import Sequence

_MOST_TOKENS = 2**31 - 1  # positions and lengths are int32 on their way to attention


def reach(scale: float, trained: int) -> int:
    """Longest request of a scale, tokens. Computed from the scale's decimals: 2.3 times 100 tokens are 230, not 229."""
    return math.floor(fractions.Fraction(str(scale)) * trained)


def refuse_scales(scales: Sequence[float]) -> None:
    """Check the rules for scales that do not depend on the trained length.

    Raises:
        ValueError: when scales are not finite, do not start at 1, do not ascend, or share a label.
    """
    if not all(math.isfinite(scale) for scale in scales):
        raise ValueError(f"scales must be finite, got {list(scales)}")
    if not scales or scales[0] != 1:
        raise ValueError(f"scales must start at 1, got {list(scales)}")
    if any(low >= high for low, high in itertools.pairwise(scales)):
        raise ValueError(f"scales must ascend, got {list(scales)}")
    if len({_label(scale) for scale in scales}) < len(scales):
        raise ValueError(
            f"scales must differ in their first six digits, which label them in metrics, got {list(scales)}: remove one"
        )


def _label(scale: float) -> str:
    return f"{scale:g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaleSet:
    """Scale number i lets a request grow to ``scales[i]`` times the trained length.

    Code names a scale by its index. The tables of all scales are stacked in one. The part of a scale has only the
    rows that a request of that scale can reach: the scales 1, 2, 4, 8 cost 15 trained lengths of rows and not 32.

    Attributes:
        scales: ascending, starting at 1.
        original_max_position_embeddings: trained length, tokens.
        max_model_len: served length, tokens; the largest scale covers it, unless ``allow_beyond_trained``.
        allow_beyond_trained: accept scales that do not cover ``max_model_len``.

    Raises:
        ValueError: when the scales do not start at 1, do not ascend, share a label, reach too far, or do not cover
            ``max_model_len``.
    """

    scales: tuple[float, ...]
    original_max_position_embeddings: int
    max_model_len: int
    allow_beyond_trained: bool = False

    def __post_init__(self) -> None:
        refuse_scales(self.scales)
        if self.scales[-1] * self.original_max_position_embeddings > _MOST_TOKENS:
            raise ValueError(
                f"scales must reach at most {_MOST_TOKENS} tokens, got {self.scales[-1]:g} times the trained "
                f"{self.original_max_position_embeddings}: lower the largest scale"
            )
        if self.max_model_len < 1:
            raise ValueError(f"max_model_len must be at least 1, got {self.max_model_len}")
        if self.max_model_len > _MOST_TOKENS:
            raise ValueError(f"max_model_len must be at most {_MOST_TOKENS}, got {self.max_model_len}")
        longest = reach(self.scales[-1], self.original_max_position_embeddings)
        if longest < self.max_model_len and not self.allow_beyond_trained:
            raise ValueError(
                f"scales must cover max_model_len {self.max_model_len}, but the largest, {self.scales[-1]:g}, reaches "
                f"only {longest} tokens ({self.scales[-1]:g} times the trained "
                f"{self.original_max_position_embeddings}): add a larger scale or lower max_model_len"
            )

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:
        """Longest request of each scale, tokens. The last scale ends at ``max_model_len``."""
        reached = [reach(scale, self.original_max_position_embeddings) for scale in self.scales[:-1]]
        return (*(min(length, self.max_model_len) for length in reached), self.max_model_len)

    @property
    def row_offsets(self) -> tuple[int, ...]:
        """First row of each scale's part in the stacked table."""
        return tuple(itertools.accumulate(self.lengths[:-1], initial=0))

    @property
    def num_rows(self) -> int:
        """Rows of the stacked table.

        A row index is an offset plus a position below ``max_model_len``, and the last part has ``max_model_len`` rows.
        So even the index of a padded or stale token is a row of the table.
        """
        return sum(self.lengths)

    def for_length(self, num_tokens: int) -> int:
        """Index of the smallest scale that covers ``num_tokens``.

        Raises:
            ValueError: when the length exceeds ``max_model_len``.
        """
        if num_tokens > self.max_model_len:
            raise ValueError(f"a request may have at most {self.max_model_len} tokens, got {num_tokens}")
        return bisect.bisect_left(self.lengths, num_tokens)

    def label(self, index: int) -> str:
        """The scale as it is written in metrics and responses: ``1``, ``1.5``, ``8``."""
        return _label(self.scales[index])

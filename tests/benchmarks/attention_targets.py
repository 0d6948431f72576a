"""How slow our attention may be over vLLM's, and whether it is faster than that."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tests.benchmarks.attention_rivals import BIAS, STOCK, WINDOWED
from tests.benchmarks.attention_times import Timed


@dataclasses.dataclass(frozen=True)
class Target:
    """A decode step may take at most so many times as long as vLLM's without a bias.

    Attributes:
        rivals: what their names begin with.
        contexts: where it holds, from the first to the last.
    """

    rivals: str
    ratio: float
    contexts: tuple[float, float] = (0, float("inf"))

    def verdict(self, timed: Sequence[Timed]) -> str | None:
        """In words; None where nothing was measured that it is about."""
        found = [
            (one.ratio(name).value, f"{name}, {one.layer.dtype_name}, {one.work.name}")
            for one in timed
            for name in one.seconds
            if one.work.kind == "decode"
            and name.startswith(self.rivals)
            and self.contexts[0] <= one.work.context <= self.contexts[1]
        ]
        if not found:
            return None
        said = f"At most {self.ratio:g} times {STOCK}'s time, {self.rivals}{self._where()}"
        if missed := [f"{name} ({ratio:.2f})" for ratio, name in found if ratio > self.ratio]:
            return f"{said}: missed in {len(missed)} of {len(found)}: {'; '.join(missed)}."
        ratio, name = max(found)
        return f"{said}: reached, most is {ratio:.2f} ({name})."

    def _where(self) -> str:
        first, last = self.contexts
        if first == last:
            return f" at {first:,} tokens"
        return f" from {first:,} tokens on" if first else ""


TARGETS = (Target("CoPE", 2.0, (4096, 4096)), Target(BIAS, 1.3), Target(WINDOWED, 1.0, (4096, float("inf"))))


def verdicts(timed: Sequence[Timed]) -> list[str]:
    """One sentence for each target that something was measured for."""
    return [said for target in TARGETS if (said := target.verdict(timed)) is not None]

"""What happened since the last report, by scale: the plain values that become metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

TOTAL = "all"  # key of a count that is not split by scale
_LEVELS = (
    "kv_blocks",
    "prefill_tokens",
    "rerotate_budget_tokens",
)  # gauges: the latest value holds, values are not added


class Counts:
    """Counters of the coordinator, keyed by the scale's label."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.generation_tokens: Counter[str] = Counter()
        self.prefix_hit_tokens: Counter[str] = Counter()
        self.crossings: Counter[str] = Counter()  # by "from to how"
        self.rerotated_tokens: Counter[str] = Counter()
        self.copied_blocks: Counter[str] = Counter()
        self.prefix_reused_tokens: Counter[str] = Counter()  # by "from to"

    def take(self) -> dict[str, dict[str, int]]:
        """The counts since the last call; empty counters are left out."""
        counters = vars(self)
        if not any(counters.values()):
            return {}
        taken = {name: dict(counter) for name, counter in counters.items() if counter}
        for counter in counters.values():
            counter.clear()
        return taken


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two reports as one: counts are added, observations are joined, and the later level replaces the earlier.

    Counts and levels are mappings by scale; observations are lists.
    """
    result = dict(first)
    for name, value in second.items():
        if name not in result or name in _LEVELS:
            result[name] = value
        elif isinstance(value, list):
            result[name] = [*result[name], *value]
        else:
            result[name] = dict(Counter(result[name]) + Counter(value))
    return result

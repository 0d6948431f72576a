"""What the two halves of the connector report every step, in the form in which vLLM carries it to the front end."""

from __future__ import annotations

import dataclasses
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from posenc_runtime.kv.counts import merged


@dataclasses.dataclass
class PosencStats(KVConnectorStats):
    """Plain values: counts by scale since the last report, levels by scale, and lists of seconds."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.data = merged(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        """One figure for each entry, for vLLM's periodic log line."""
        totals: dict[str, int | float] = {
            name: sum(value.values()) for name, value in self.data.items() if isinstance(value, dict)
        }
        seconds = {name: round(sum(value), 6) for name, value in self.data.items() if isinstance(value, list)}
        return totals | seconds

    def is_empty(self) -> bool:
        return not self.data

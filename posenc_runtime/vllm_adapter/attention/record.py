"""What the attention layers of this process count, for the metrics: vLLM makes them, and keeps no list."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from posenc_runtime.kv.counts import TOTAL


@dataclasses.dataclass
class AttentionRecord:
    """
    Attributes:
        windows: of each layer with a distance bias, int64 ``[2]``: KV blocks read and skipped.
        walks: of each layer with contextual positions, int64 ``[2]``: keys walked before every row stood at
            the last position, and after.
    """

    windows: list[Tensor] = dataclasses.field(default_factory=list)
    walks: list[Tensor] = dataclasses.field(default_factory=list)

    def take(self) -> dict[str, dict[str, int]]:
        """The counts since the last call, in the form of ``counts.merged``; what is zero is left out."""
        read, skipped = _taken(self.windows)
        gated, saturated = _taken(self.walks)
        counted = {
            "window_kv_blocks_read": {TOTAL: read},
            "window_kv_blocks_skipped": {TOTAL: skipped},
            "cope_walked": {"gated": gated, "saturated": saturated},
        }
        return {name: counts for name, counts in counted.items() if any(counts.values())}


def _taken(layers: list[Tensor]) -> tuple[int, int]:
    if not layers:
        return 0, 0
    first, second = torch.stack(layers).sum(0).tolist()
    for counts in layers:
        counts.zero_()
    return first, second


RECORD = AttentionRecord()

"""What the attention layers of this process count, for the metrics: vLLM makes them, and keeps no list."""

from __future__ import annotations

import dataclasses

from torch import Tensor


@dataclasses.dataclass
class AttentionRecord:
    """
    Attributes:
        windows: of each layer with a distance bias, int64 ``[2]``: KV blocks read and skipped.
        walks: of each layer with contextual positions, int64 ``[2]``: tiles of keys walked before every row stood at
            its furthest position, and after.
    """

    windows: list[Tensor] = dataclasses.field(default_factory=list)
    walks: list[Tensor] = dataclasses.field(default_factory=list)


RECORD = AttentionRecord()

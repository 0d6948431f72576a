"""What the attention layers of this process count, for the metrics. vLLM keeps no list of the layers that it builds."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from posenc_runtime.kv.counts import TOTAL


class Tally:
    """Two numbers to which kernels of all layers add. They are read without waiting for the device. Decision 50."""

    def __init__(self) -> None:
        self._counts: Tensor | None = None

    def on(self, device: torch.device) -> Tensor:
        """The numbers, int64 ``[2]``. They must only be written in place: captured CUDA graphs hold their address."""
        if self._counts is None or self._counts.device != device:
            self._counts = torch.zeros(2, dtype=torch.int64, device=device)
            self._copy = torch.zeros(2, dtype=torch.int64, pin_memory=device.type == "cuda")
            self._copied: torch.cuda.Event | None = None
            self._taken = (0, 0)
        return self._counts

    def forget(self) -> None:
        """Discard what was added so far."""
        if self._counts is not None:
            self._counts.zero_()
            self._copy.zero_()
            self._copied, self._taken = None, (0, 0)

    def take(self) -> tuple[int, int]:
        """What was added between the last two copies from the device, or, on the CPU, since the last call."""
        if self._counts is None or (self._copied is not None and not self._copied.query()):  # type: ignore[no-untyped-call]
            return 0, 0
        if not self._counts.is_cuda:
            self._copy.copy_(self._counts)
        first, second = self._copy.tolist()
        added = first - self._taken[0], second - self._taken[1]
        self._taken = first, second
        if self._counts.is_cuda:
            self._copied = self._copied or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copy.copy_(self._counts, non_blocking=True)
            self._copied.record()
        return added


@dataclasses.dataclass
class AttentionRecord:
    """The tallies that all attention layers of a process add to.

    Attributes:
        windows: of layers with a distance bias, KV blocks read and skipped.
        walks: of layers with contextual positions, keys visited before every row reached the last position, and after.
    """

    windows: Tally = dataclasses.field(default_factory=Tally)
    walks: Tally = dataclasses.field(default_factory=Tally)

    def forget(self) -> None:
        """Discard the counts of the steps that vLLM runs to warm up and to capture graphs."""
        self.windows.forget()
        self.walks.forget()

    def take(self) -> dict[str, dict[str, int]]:
        """The counts since the last call, in the form of ``counts.merged``; counts of zero are left out."""
        read, skipped = self.windows.take()
        gated, saturated = self.walks.take()
        counted = {
            "window_kv_blocks_read": {TOTAL: read},
            "window_kv_blocks_skipped": {TOTAL: skipped},
            "cope_walked": {"gated": gated, "saturated": saturated},
        }
        return {name: counts for name, counts in counted.items() if any(counts.values())}


RECORD = AttentionRecord()

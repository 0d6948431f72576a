"""Groups of layers with the same attention, described by ranges of their numbers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class LayerGroup:
    """Layers that have the same backend and the same position encoding.

    Attributes:
        layers: "0-7" or "3" or "0-2,5".
        backend: the attention backend of these layers.
        encoding: the position encoding of these layers.
    """

    layers: str
    backend: str
    encoding: str


def layer_groups(layers: Iterable[tuple[str, str, str]]) -> list[LayerGroup]:
    """The groups of layers with the same backend and encoding, in the order of each group's first layer.

    Args:
        layers: name, backend and encoding of each layer; workers that hold the same layer may repeat it.
    """
    alike: dict[tuple[str, str], set[int]] = {}
    for name, backend, encoding in layers:
        number = re.search(r"\d+", name)
        alike.setdefault((backend, encoding), set()).add(int(number[0]) if number else 0)
    ordered = sorted(alike.items(), key=lambda item: min(item[1]))
    return [LayerGroup(_ranges(sorted(numbers)), *kind) for kind, numbers in ordered]


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

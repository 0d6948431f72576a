"""Averages over samples: by position, and as differences between targets that had the same samples."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from server.evaluation.intervals import Estimate, mean
from server.printing.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Mapping[str, Mapping[str, float]]  # by target, then by sample


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Positions of a text, from ``first`` to before ``end``."""

    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.first:,} to {self.end - 1:,}"


def buckets(first: int, end: int, width: int, *, edge: int = 0) -> list[Bucket]:
    """Buckets of one width that cover positions; one of their edges is where it is asked for.

    Args:
        first, end: of the positions, end exclusive.
    """
    edges = range(edge - -(-(edge - first) // width) * width, end + width, width)
    spans = ((max(low, first), min(low + width, end)) for low in edges)
    return [Bucket(low, high) for low, high in spans if low < high]


def average(values: Sequence[float], first: int, bucket: Bucket) -> float:
    """The mean over a bucket of one sample.

    Args:
        values: one for each position, from ``first`` on.
    """
    return statistics.fmean(values[max(bucket.first - first, 0) : bucket.end - first])


def estimates(values: Values) -> dict[str, Estimate]:
    """The mean over samples, by target; targets without samples are left out."""
    return {target: mean(list(each.values())) for target, each in values.items() if each}


def differences(values: Values, reference: str) -> dict[str, Estimate]:
    """The mean of each target's difference from a reference, over the samples that both have.

    Samples of one text differ much more than targets do, so that such paired differences are known more exactly than
    the means themselves.
    """
    base = values.get(reference, {})
    found = {}
    for target, each in values.items():
        if target != reference and (shared := [each[sample] - base[sample] for sample in each if sample in base]):
            found[target] = mean(shared)
    return found


def table(
    title: str, heading: str, rows: Iterable[tuple[str, Mapping[str, Estimate]]], targets: Sequence[str],
    *, digits: int = 3, sign: bool = False, note: str = "",
) -> Table:  # fmt: skip
    """A row for each thing that was measured, a column for each target.

    Args:
        sign: whether values get a plus, too.
    """
    spec = f"{'+' if sign else ''}.{digits}f"
    lines = [
        (name, *(each[target].plus_minus(spec) if target in each else "-" for target in targets)) for name, each in rows
    ]
    return Table(title, (heading, *targets), lines, note)


def draw(title: str, by_tokens: Mapping[int, Values], targets: Sequence[str], x_label: str, y_label: str) -> Figure:
    """A line for each target, with 95 % t intervals around it, and one at 0.

    Args:
        by_tokens: what was measured at so many tokens.
    """
    from server.plots import style

    drawn, (axes,) = style.figure(title)
    for number, target in enumerate(targets):
        known = [(x, mean(list(each[target].values()))) for x, each in by_tokens.items() if each.get(target)]
        style.band(axes, number, target, [(x, each.value, each.low, each.high) for x, each in known])
    axes.axhline(0, color=style.FAINT, linewidth=1)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend()
    return drawn

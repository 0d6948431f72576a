"""One style for all pictures: colours that colour-blind people can tell apart, few lines, and names beside colours."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette; lines also differ by marker, for prints without colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HEAT = "cividis"  # a map whose brightness grows evenly, made for colour-blind readers
TEXT, FAINT, GRID = "#24292f", "#57606a", "#d8dee4"
_DPI = 120
_SETTINGS: dict[str, Any] = {
    "font.size": 11,
    "font.family": "DejaVu Sans",
    "text.color": TEXT,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "legend.frameon": False,
}


def is_available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def figure(
    title: str, *, width: float = 9.0, height: float = 4.5, columns: int = 1, shared: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, side by side.

    Args:
        width, height: inches.
        shared: whether all axes have the same vertical scale.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        drawn = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(drawn)
        axes = drawn.subplots(1, columns, sharey=shared, squeeze=False)[0]
        drawn.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=TEXT)
    return drawn, list(axes)


def look(index: int) -> dict[str, Any]:
    """Colour and marker of a series, by its number."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "markersize": 5}


def band(axes: Axes, index: int, name: str, points: Sequence[tuple[float, float, float, float]]) -> None:
    """Draw a series with an interval around it.

    Args:
        index: the number of the series.
        points: ``(x, value, low, high)`` each.
    """
    x, value, low, high = ([point[column] for point in points] for column in range(4))
    axes.plot(x, value, label=name, **look(index))
    axes.fill_between(x, low, high, color=look(index)["color"], alpha=0.15, linewidth=0)


def save(drawn: Figure, path: pathlib.Path) -> None:
    """Write a PNG; the same figure gives the same bytes."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        drawn.savefig(path, dpi=_DPI, facecolor="white", metadata={"Software": None})

"""The picture of a recording: two requests on one time axis, and below them the KV blocks that each scale holds."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from tests.benchmarks.recording import BlockLevels, Recording, Request

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which colour-blind people can tell apart; every colour is named by a label, too.
_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#D55E00", "#E69F00", "#56B4E9")
_TEXT = "#24292f"
_FAINT = "#57606a"
_GRID = "#d8dee4"
_WIDTH, _HEIGHT, _DPI = 12.0, 6.0, 100  # inches, inches, dots per inch: 1200 x 600


def colours(recording: Recording) -> dict[str, str]:
    """A colour for each scale, by its label, smallest scale first."""
    labels = {_label(request.scale) for request in (recording.long, recording.short)} | set(recording.blocks.by_scale)
    ordered = sorted(labels - {"none"}, key=float)
    return {label: _COLOURS[index % len(_COLOURS)] for index, label in enumerate(ordered)} | {"none": _FAINT}


def draw(recording: Recording, out: pathlib.Path, *, title: str) -> None:
    """Draw it as a PNG of 1200 by 600."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings = {
        "font.size": 12,
        "font.family": "DejaVu Sans",
        "text.color": _TEXT,
        "axes.labelcolor": _FAINT,
        "xtick.color": _FAINT,
        "ytick.color": _FAINT,
    }
    with pyplot.rc_context(settings):
        figure, (lanes, blocks) = pyplot.subplots(
            2, 1, sharex=True, figsize=(_WIDTH, _HEIGHT), height_ratios=(1.15, 1), layout="constrained"
        )
        figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
        figure.suptitle(title, x=0.012, ha="left", fontsize=15, fontweight="bold")
        by_scale = colours(recording)
        _draw_lanes(lanes, recording, by_scale)
        _draw_blocks(blocks, recording.blocks, by_scale)
        end = recording.blocks.times[-1] if recording.blocks.times else 1.0
        blocks.set_xlim(0, max(end, *(request.tokens[-1] for request in (recording.long, recording.short))))
        blocks.set_xlabel("seconds")
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=_DPI, facecolor="white", metadata={"Software": None})
        pyplot.close(figure)


def _draw_lanes(axes: Axes, recording: Recording, by_scale: dict[str, str]) -> None:
    for height, request in ((1.0, recording.long), (0.0, recording.short)):
        colour = by_scale[_label(request.scale)]
        first, last = request.tokens[0], request.tokens[-1]
        axes.barh(height, first - request.sent, left=request.sent, height=0.34, color=colour, linewidth=0)
        # decoding: a pale bar with a stroke for every piece of the stream, so that a stall would be seen
        axes.barh(height, last - first, left=first, height=0.34, color=colour, alpha=0.22, linewidth=0)
        axes.vlines(request.tokens, height - 0.17, height + 0.17, color=colour, linewidth=0.6, alpha=0.75)
        # white behind it: a grid line must not cross a digit
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        axes.text(request.sent, height + 0.26, _caption(request), color=_TEXT, va="bottom", bbox=paper)
        beside = axes.annotate(
            f"scale {_label(request.scale)}", (last, height), (8, 0), textcoords="offset points", va="center"
        )
        beside.set(color=colour, fontweight="bold")
    axes.set_ylim(-0.45, 1.65)
    axes.set_yticks([])
    axes.tick_params(axis="x", length=0)
    _plain(axes)
    axes.spines["bottom"].set_visible(False)
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title(
        "solid: prompt being read; strokes: tokens of the answer as they came", loc="left", fontsize=11, color=_FAINT
    )


def _draw_blocks(axes: Axes, levels: BlockLevels, by_scale: dict[str, str]) -> None:
    from matplotlib.ticker import MaxNLocator

    for label, series in sorted(levels.by_scale.items(), key=lambda item: float(item[0])):
        if not any(series):
            continue
        colour = by_scale[label]
        axes.fill_between(levels.times, series, step="post", color=colour, alpha=0.15, linewidth=0)
        axes.step(levels.times, series, where="post", color=colour, linewidth=2)
        peak = series.index(max(series))
        text = axes.annotate(
            f"scale {label}", (levels.times[peak], series[peak]), (0, 5), textcoords="offset points", ha="center"
        )
        text.set(color=colour, fontweight="bold")
    axes.set_ylim(0, 1.25 * max((max(series) for series in levels.by_scale.values()), default=1.0) or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    _plain(axes)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title("KV-cache blocks held, by the scale of their keys", loc="left", fontsize=11, color=_FAINT)


def _plain(axes: Axes) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)


def _caption(request: Request) -> str:
    return f"{request.name}: prompt of {request.prompt_tokens} tokens, answer of {request.new_tokens}"


def _label(scale: float | None) -> str:
    return "none" if scale is None else f"{scale:g}"

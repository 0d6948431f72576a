"""The picture of decode times: nanoseconds for each token of context, over the context; what is level grows with it."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from tests.benchmarks.attention_times import Timed

# Okabe and Ito's palette, which colour-blind people can tell apart, without its yellow.
_COLOURS = ("#000000", "#999999", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9")
_SIZE, _DPI = 5.0, 100  # inches a side, dots per inch


def draw(timed: Sequence[Timed], out: pathlib.Path) -> None:
    """Draw the decode steps as a PNG, 500 by 500 for each layer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    layers = list(dict.fromkeys(one.layer for one in timed))
    figure, axes = pyplot.subplots(
        1, len(layers), figsize=(_SIZE * len(layers), _SIZE), sharey=True, squeeze=False, layout="constrained"
    )
    for layer, plot in zip(layers, axes[0], strict=True):
        decoded = [one for one in timed if one.layer == layer and one.work.kind == "decode"]
        contexts = [one.work.context for one in decoded]
        for index, name in enumerate(decoded[0].seconds):
            heights = [one.nanoseconds_a_token(name) for one in decoded]
            plot.plot(contexts, heights, marker="o", color=_COLOURS[index % len(_COLOURS)], label=name)
        plot.set_xscale("log", base=2)
        plot.set_xticks(contexts, [f"{context:,}" for context in contexts])
        plot.minorticks_off()
        plot.set_ylim(bottom=0)
        plot.set_title(layer.name, fontsize=11)
        plot.set_xlabel("tokens of context")
        plot.grid(color="#d8dee4", linewidth=0.8)
    axes[0][0].set_ylabel("ns a layer for each token of context")
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=_DPI, facecolor="white", metadata={"Software": None})
    pyplot.close(figure)

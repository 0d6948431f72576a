"""How the score of a query with an equal key falls with their distance, at every scale.

A rotary embedding turns pair i of a query and of a key by the angle inv_freq[i] times their position. The score of a
query with an equal key d tokens before it, whose pairs all have the same length, is then proportional to the mean of
cos(inv_freq[i] d) over all pairs (Su et al. 2021, arXiv:2104.09864, section 3.3), times the square of the attention
factor. Pairs that do not turn count as cos 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from server.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from posenc_runtime.encodings.spec import Frequencies, RotarySpec
    from posenc_runtime.kv.deployment import Deployment

DISTANCES_PER_OCTAVE = 8


def scores(frequencies: Frequencies, distances: Sequence[int]) -> list[float]:
    """The score at each distance, over that of the unscaled rotation at distance 0.

    Args:
        distances: tokens.
    """
    import torch

    angles = torch.tensor(distances, dtype=torch.float64)[:, None] * frequencies.inv_freq.double()
    found: list[float] = (angles.cos().mean(1) * frequencies.attention_factor**2).tolist()
    return found


def edges(furthest: int) -> list[int]:
    """Distances from 1 on that grow evenly on a logarithmic axis, the furthest last."""
    steps = int(math.log2(furthest) * DISTANCES_PER_OCTAVE) + 1
    return sorted({*(round(2 ** (step / DISTANCES_PER_OCTAVE)) for step in range(steps)), furthest})


def means(values: Sequence[float]) -> list[tuple[float, float]]:
    """Distances that grow evenly on a logarithmic axis, each with the mean value from it to the next one.

    A cosine at single distances would show waves that it does not have.

    Args:
        values: of every distance from 0 on.
    """
    return [
        (math.sqrt(begin * (end - 1)), sum(values[begin:end]) / (end - begin))
        for begin, end in itertools.pairwise(edges(len(values) - 1))
    ]


def draw(name: str, deployment: Deployment, spec: RotarySpec) -> Figure:
    """One line for each scale, to the longest request of that scale.

    Args:
        name: of the model.
    """
    drawn, (axes,) = style.figure(f"{name}: score by distance, {deployment.rope_type}")
    for index, length in enumerate(deployment.scale_set.lengths):
        points = means(scores(deployment.frequencies(spec, index), range(length + 1)))
        x, y = zip(*points, strict=True)
        label = f"scale {deployment.scale_set.label(index)}"
        axes.plot(x, y, label=label, markevery=DISTANCES_PER_OCTAVE, **style.look(index))
    trained = deployment.original_max_position_embeddings
    axes.axvline(trained, color=style.TEXT, linewidth=1, linestyle="--")
    axes.axhline(0, color=style.FAINT, linewidth=1)
    axes.annotate(
        "trained length",
        (trained, axes.get_ylim()[1]),
        xytext=(-4, -12),
        textcoords="offset points",
        ha="right",
        color=style.TEXT,
        fontsize=10,
    )
    axes.set_xscale("log", base=2)
    axes.set_xlabel("distance of query and key, tokens")
    axes.set_ylabel("score of a query with an equal key")
    axes.legend(loc="lower left")
    return drawn

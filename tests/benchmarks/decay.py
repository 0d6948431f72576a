"""The picture of what each encoding does with distance: ``python -m tests.benchmarks.decay``.

It is drawn from the decoders of the length zoo that were trained on text. Some encodings add a bias to a score, others
turn queries and keys. What Shaw's, Transformer-XL's and CoPE's do depends on the query: they are in no picture.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from safetensors.torch import load_file
from torch import Tensor

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.decoder.distance_bias import DistanceBiasEncoding
from posenc_runtime.decoder.encoding import PositionEncoding
from posenc_runtime.decoder.places import standing_at
from posenc_runtime.decoder.positions import encoding
from posenc_runtime.zoo.lengths.recipe import WEIGHTS
from server.plots import decay, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FURTHEST = 1024  # tokens, twice the trained length
ADDED = ("alibi", "kerple_log", "kerple_power", "t5")
TURNED = ("rope", "xpos")
_PREFIX = "model.position."


def read(folder: pathlib.Path) -> PositionEncoding:
    """The position encoding of a decoder, which all of its layers share, with its weights."""
    config = PosencConfig.from_pretrained(folder)
    found = encoding(config.position_encoding_type)(config)
    weights = load_file(folder / "model.safetensors")
    found.load_state_dict({k.removeprefix(_PREFIX): v for k, v in weights.items() if k.startswith(_PREFIX)})
    return found


def biases(of: PositionEncoding, distances: Tensor) -> Tensor:
    """What the encoding adds to a score at each distance.

    Args:
        distances: tokens.

    Returns:
        ``[num_heads, num_distances]``.

    Raises:
        TypeError: when the encoding adds nothing that the distance decides.
    """
    if not isinstance(of, DistanceBiasEncoding):
        raise TypeError(f"an encoding must add a bias of the distance, got {type(of).__name__}")
    with torch.no_grad():
        return of.bias().form().bias(distances.double())


def shares(of: PositionEncoding, head_dim: int, distances: Tensor) -> Tensor:
    """The score of a query with an equal key at each distance, over the score at distance 0.

    All pairs of the query have the same length.

    Args:
        distances: tokens; the key stands at position 0, and the query so many tokens after it.

    Returns:
        ``[num_distances]``.
    """
    states = torch.ones(1, 1, len(distances), head_dim, dtype=torch.float64)

    def encoded(positions: Tensor) -> tuple[Tensor, Tensor]:
        here = standing_at(positions[None])
        return of.encode(states, states, here, of.prepare(here, torch.float64))

    query, key = encoded(distances)[0], encoded(torch.zeros_like(distances))[1]
    return (query * key).sum(-1)[0, 0] / head_dim


def draw(weights: pathlib.Path, furthest: int = FURTHEST) -> Figure:
    """Encodings that add to a score on the left, those that turn queries and keys on the right.

    Args:
        weights: the folder that has a decoder for each encoding.
        furthest: tokens, the largest distance.
    """
    # A logarithmic axis has no place for distance 0.
    edges = torch.tensor(decay.edges(furthest))
    every = torch.arange(furthest + 1)
    drawn, (added, turned) = style.figure(
        "What encodings do with the distance of query and key", width=11, columns=2, shared=False
    )
    for index, name in enumerate(ADDED):
        values = biases(read(weights / name), edges)
        look = style.look(index)
        added.plot(edges, values.mean(0), label=name, markevery=decay.DISTANCES_PER_OCTAVE, **look)
        added.fill_between(edges, values.amin(0), values.amax(0), color=look["color"], alpha=0.12, linewidth=0)
    # Near distances matter most: biases from -1 to 1 are drawn evenly, and others by their logarithm.
    added.set_yscale("symlog", linthresh=1)
    added.set_ylabel("added to the score, mean and range of heads")
    for index, name in enumerate(TURNED, start=len(ADDED)):
        decoder = weights / name
        values = shares(read(decoder), PosencConfig.from_pretrained(decoder).head_dim, every)
        middles, means = zip(*decay.means(values.tolist()), strict=True)
        turned.plot(middles, means, label=name, markevery=decay.DISTANCES_PER_OCTAVE, **style.look(index))
    turned.axhline(0, color=style.FAINT, linewidth=1)
    turned.set_ylabel("score of a query with an equal key")
    for axes in (added, turned):
        axes.axvline(furthest // 2, color=style.TEXT, linewidth=1, linestyle="--")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("distance, tokens; the mark is the trained length")
        axes.legend(loc="lower left")
    return drawn


def main(
    out: Annotated[
        pathlib.Path, typer.Option(help="Where the PNG goes.", show_default="docs/pictures/encodings.png")
    ] = pathlib.Path(__file__).parents[2] / "docs" / "pictures" / "encodings.png",
) -> None:
    """Draw what each encoding of the length zoo does with the distance of query and key."""
    style.save(draw(WEIGHTS / "text"), out)


if __name__ == "__main__":
    typer.run(main)

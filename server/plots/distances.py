"""At which distance a query sees a key, by how far back the key lies, for methods that turn queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from posenc_runtime.encodings.far_pages import FarPages
    from posenc_runtime.kv.deployment import Deployment


def seen(pages: FarPages, position: int) -> list[float]:
    """The distance at which a query sees each key, from the key at its own position back to the first one.

    Args:
        position: of the query, in tokens.
    """
    distances: list[float] = []
    for first_key in range(position // pages.page * pages.page, -1, -pages.page):
        turned_to = pages.target(position, first_key)
        last_key = min(first_key + pages.page - 1, position)
        distances += (float(turned_to - key) for key in range(last_key, first_key - 1, -1))
    return distances


def draw(name: str, deployment: Deployment, block_size: int | None) -> Figure:
    """One line for a query at the end of the trained length, and one for the last query of the longest request.

    Args:
        name: of the model.
        block_size: tokens of a block of the KV cache; None where nobody has said it.
    """
    drawn, (axes,) = style.figure(f"{name}: distances that a query sees, {deployment.rope_type}")
    pages, trained = deployment.pages(block_size), deployment.original_max_position_embeddings
    longest = deployment.max_model_len
    # All queries past the trained length see a key that lies so far back at about the same distance.
    for index, length in enumerate(sorted({trained, longest})):
        axes.plot(
            range(1, length + 1),
            seen(pages, length - 1),
            label=f"query at position {length - 1:,}",
            markevery=max(trained // 4, 1),
            **style.look(index),
        )
    axes.axhline(trained, color=style.TEXT, linewidth=1, linestyle="--")
    axes.annotate(
        f"trained length, {trained:,} tokens",
        (0, trained),
        xytext=(2, 4),
        textcoords="offset points",
        color=style.TEXT,
        fontsize=10,
    )
    axes.set_xlim(0, min(max(4 * trained, pages.bounded_from + trained), longest))
    axes.set_ylim(0, 1.25 * trained)
    axes.set_xlabel("the key lies so many tokens back")
    axes.set_ylabel("distance that the query sees, in tokens")
    axes.legend(loc="lower right")
    return drawn

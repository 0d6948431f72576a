"""How many tokens each rotated pair takes for a full turn, at every scale, beside the trained length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from posenc_runtime.encodings.spec import RotarySpec
    from posenc_runtime.kv.deployment import Deployment


def draw(name: str, deployment: Deployment, spec: RotarySpec) -> Figure:
    """One line for each scale. Above the line of the trained length are pairs that never made a full turn in training.

    Args:
        name: of the model.
    """
    drawn, (axes,) = style.figure(f"{name}: wavelengths by pair, {deployment.rope_type}")
    for index in range(len(deployment.scales)):
        values = deployment.frequencies(spec, index).wavelengths
        axes.plot(
            range(len(values)),
            values,
            label=f"scale {deployment.scale_set.label(index)}",
            markevery=max(len(values) // 8, 1),
            **style.look(index),
        )
    trained = deployment.original_max_position_embeddings
    axes.axhline(trained, color=style.TEXT, linewidth=1, linestyle="--")
    axes.annotate(
        f"trained length, {trained:,} tokens",
        (0, trained),
        xytext=(2, 4),
        textcoords="offset points",
        color=style.TEXT,
        fontsize=10,
    )
    axes.set_yscale("log")
    axes.set_xlabel("pair of a head's components")
    axes.set_ylabel("tokens for a full turn")
    axes.legend()
    return drawn

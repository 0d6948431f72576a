"""``posenc plot``: pictures of what a deployment does to a model's rotation."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from server.commands.options import Config, Overrides, Target
from server.printing.terminal import console, refusals
from server.start_up.reading import plan_read, read_settings

# What takes long to import is imported in the commands, so that help and errors appear at once.
if TYPE_CHECKING:
    from posenc_runtime.encodings.spec import RotarySpec
    from posenc_runtime.kv.deployment import Deployment
    from posenc_runtime.vllm_adapter.settings.plan import Plan
    from server.deployment.settings import Settings

    Draw = Callable[[str, Deployment, RotarySpec], None]

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Draw what a deployment does to a model's rotation, without its weights and without an engine.",
    short_help="Draw what a deployment does to a model's rotation.",
)

Out = Annotated[pathlib.Path, typer.Option("--out", metavar="FILE", help="Where the PNG goes.")]


@app.command(short_help="Tokens for a full turn of each pair, by scale.")
def wavelengths(
    target: Target = None,
    config: Config = None,
    overrides: Overrides = None,
    out: Out = pathlib.Path("wavelengths.png"),
) -> None:
    """Draw how many tokens each rotated pair takes for a full turn, at every scale, and mark the trained length.

    A pair above the mark never made a full turn in training. Past the trained length it turns to angles that the model
    has not seen, unless a scale slows it down.
    """
    with refusals():
        from server.plots import style
        from server.plots import wavelengths as plot

        _draw(target, config, overrides, out, lambda *given: style.save(plot.draw(*given), out))


@app.command(short_help="The score of a query with an equal key by their distance, by scale.")
def decay(
    target: Target = None,
    config: Config = None,
    overrides: Overrides = None,
    out: Out = pathlib.Path("decay.png"),
) -> None:
    """Draw how the score of a query with an equal key falls with their distance, at every scale.

    It follows from the frequencies alone: it is the mean of the cosines of all pairs, times the square of the attention
    factor. What a trained model attends to also depends on its weights.
    """
    with refusals():
        from server.plots import decay as plot
        from server.plots import style

        _draw(target, config, overrides, out, lambda *given: style.save(plot.draw(*given), out))


@app.command(short_help="The distance at which a query sees each key, where queries turn.")
def distances(
    target: Target = None,
    config: Config = None,
    overrides: Overrides = None,
    out: Out = pathlib.Path("distances.png"),
) -> None:
    """Draw at which distance a query sees a key, by how far back the key lies: for rope_type rerope and dual_chunk.

    Up to the trained length a query sees every key where it is. Past it, far keys are seen at a distance that training
    has shown.
    """
    with refusals():
        from posenc_runtime.vllm_adapter.settings.section import SettingRefused
        from server.plots import distances as plot
        from server.plots import style

        settings, plan = _planned(target, config, overrides, out)
        if not plan.deployment.turns_queries:
            raise SettingRefused(
                f"scaling.rope_type: must be rerope or dual_chunk, got {plan.deployment.rope_type}: with other methods "
                "a query sees every key at its own distance; posenc plot wavelengths shows what they change"
            )
        drawn = plot.draw(_name(settings), plan.deployment, settings.engine.get("block_size"))
        style.save(drawn, out)
        _say(out)


def _draw(
    target: str | None, config: pathlib.Path | None, overrides: list[str] | None, out: pathlib.Path, draw: Draw
) -> None:
    """Draw a deployment's scales, and say where the picture is.

    Raises:
        SettingRefused: when nothing rotates at a scale, when settings or checkpoint are refused, or without matplotlib.
    """
    from posenc_runtime.vllm_adapter.settings.section import SettingRefused

    settings, plan = _planned(target, config, overrides, out)
    deployment, checkpoint = plan.deployment, plan.checkpoint
    if deployment.turns_queries:
        raise SettingRefused(
            f"scaling.rope_type: must have scales, got {deployment.rope_type}, which has none: posenc plot distances "
            "shows what it does"
        )
    if checkpoint is None or checkpoint.spec is None or not deployment.rotates:
        raise SettingRefused("model: must have a rotary embedding, got one that rotates nothing: there is no picture")
    draw(_name(settings), deployment, checkpoint.spec)
    _say(out)


def _planned(
    target: str | None, config: pathlib.Path | None, overrides: list[str] | None, out: pathlib.Path
) -> tuple[Settings, Plan]:
    """What is to be drawn.

    Raises:
        SettingRefused: when settings or checkpoint are refused, or the picture cannot be drawn or written.
    """
    from posenc_runtime.vllm_adapter.settings.section import SettingRefused
    from server.plots import style

    if not style.is_available():
        raise SettingRefused("posenc plot: must have matplotlib, which is not installed: pip install 'posenc[eval]'")
    if not out.absolute().parent.is_dir():
        raise SettingRefused(f"--out: must be in a folder that exists, got {out}")
    settings = read_settings(target, config, overrides)
    return settings, plan_read(settings)


def _name(settings: Settings) -> str:
    return settings.served_model_name or pathlib.PurePath(settings.model).name


def _say(out: pathlib.Path) -> None:
    console().print(f"wrote {out}", highlight=False, markup=False)

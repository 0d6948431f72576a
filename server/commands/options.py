"""Arguments and options that several commands have."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from server.commands import shell_completion

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a setting: --set scaling.headroom_tokens=64. May be repeated.",
        autocompletion=shell_completion.settings,
    ),
]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL | CONFIGURATION]",
        help="What to run: a model's folder or its name on a hub; a deployment's YAML file; or the name of a "
        "configuration that comes with Posenc (`posenc configs` lists them). Without it, the demo.",
        autocompletion=shell_completion.targets,
    ),
]
Config = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A deployment's YAML file, in place of the argument.",
        show_default=False,
        autocompletion=shell_completion.files,
    ),
]

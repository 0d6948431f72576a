"""Arguments and options that several commands have, and what a shell offers to complete.

Completion imports neither torch nor vLLM, which take seconds.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from server.deployment import shipped
from server.deployment.target import FILES
from server.printing.terminal import refusals


class WithVllmsFlags(TyperCommand):
    """A command that takes the flags of ``vllm serve``, too, as settings below those of ``--set``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            from server.deployment import vllm_flags  # reads vLLM's table of flags

            ours = {
                option: not getattr(parameter, "is_flag", False)
                for parameter in self.get_params(ctx)
                for option in (*parameter.opts, *parameter.secondary_opts)
            }
            with refusals():
                args, overrides = vllm_flags.split(args, ours)
            args = [word for override in overrides for word in ("--set", override)] + args
        return super().parse_args(ctx, args)


def targets(incomplete: str) -> list[str]:
    """What may be served: configurations that ship, deployments' files, and folders, which may be models."""
    return [*configurations(incomplete), *files(incomplete)]


def configurations(incomplete: str) -> list[str]:
    """Names of configurations that ship."""
    return [name for name in shipped.names() if name.startswith(incomplete)]


def files(incomplete: str) -> list[str]:
    """Deployments' files, and folders that may have some.

    Where only one folder matches, its entries are offered as well: a shell would otherwise take the folder as the
    complete word.
    """
    found = list(_entries(incomplete))
    if len(found) == 1 and found[0].endswith("/"):
        found += _entries(found[0])
    return found


def settings(incomplete: str) -> list[str]:
    """Paths of settings, as ``--set`` takes them. vLLM's hundreds are offered once their section was begun."""
    from posenc_runtime.encodings.methods import available
    from posenc_runtime.vllm_adapter.settings.setting_names import SECTIONS, TOP_LEVEL, known_names

    if "=" in incomplete:
        return []
    found = set()
    for rope_type in available():
        for section, names in known_names(rope_type).items():
            if section in ("engine", "server") and not incomplete:
                found.add(f"{section}.")
            elif section == TOP_LEVEL:
                found |= {f"{name}=" for name in names - {*SECTIONS}}
            else:
                found |= {f"{section}.{name}=" for name in names}
    return sorted(path for path in found if path.startswith(incomplete))


def _entries(incomplete: str) -> Iterator[str]:
    """Files and folders that complete a path. Folders end with a slash; hidden entries need a typed dot."""
    folder, name = os.path.split(incomplete)
    try:
        entries = sorted(pathlib.Path(folder or ".").iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith(".")):
            path = os.path.join(folder, entry.name)
            if entry.is_dir():
                yield f"{path}/"
            elif entry.suffix in FILES:
                yield path


Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a setting: --set scaling.headroom_tokens=64. May be repeated.",
        autocompletion=settings,
    ),
]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL | CONFIGURATION]",
        help="What to run: a model's folder or its name on a hub; a deployment's YAML file; or the name of a "
        "configuration that comes with Posenc (`posenc configs` lists them). Without it, the demo.",
        autocompletion=targets,
    ),
]
Config = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A deployment's YAML file, in place of the argument.",
        show_default=False,
        autocompletion=files,
    ),
]

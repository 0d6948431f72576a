"""Whether a command of ours that a page shows is one that there is."""

from __future__ import annotations

from typing import Any

import typer

from server.cli import app
from server.deployment import shipped
from server.deployment.target import settings_of


def refuse_unknown(command: str, words: list[str]) -> None:
    """Parse it, and check the settings that it names."""
    subcommand, *arguments = words
    commands: Any = typer.main.get_command(app).commands
    assert subcommand in commands, command
    found = commands[subcommand]
    if hasattr(found, "commands"):  # posenc eval, of whose commands a page may write the name alone
        for chosen in arguments[:1]:
            found.commands[chosen].make_context(chosen, arguments[1:], resilient_parsing=not arguments[1:])
        return
    parsed = found.make_context(subcommand, arguments).params
    if "target" in parsed:
        target, shown = parsed["target"], "scaling.headroom_tokens=0" in command
        assert target is None or "/" in target or target in shipped.names(), command
        if not shown and "config" in parsed:  # this one is shown being refused
            settings_of(target, parsed["config"], parsed["overrides"])
